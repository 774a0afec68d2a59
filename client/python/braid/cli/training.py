"""The steps of `braid train`: batches of a dataset, streamed to a trainer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import braid
from braid.cli import errors
from braid.cli.files import Dataset, epoch_order
from braid.cli.progress import Reporter
from braid.cli.split import training_text
from braid.results import Chunk, StepResult, TrainerInfo

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Plan:
    """Batches to train on. depth: steps in flight. report_split: of the first batch."""

    epochs: int = 1
    batch_size: int = 1
    drop_last: bool = False
    shuffle: bool = True
    seed: int = 0
    depth: int = 2
    report_split: bool = False

    def steps_per_epoch(self, rows: int) -> int:
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def batches(self, rows: int, made: int) -> Iterator[np.ndarray]:
        """Yields the row numbers of each batch but for the first `made` of them."""
        steps = self.steps_per_epoch(rows)
        for epoch in range(made // steps, self.epochs):
            order = epoch_order(rows, self.shuffle, self.seed, epoch)
            first = made - epoch * steps if epoch == made // steps else 0
            for step in range(first, steps):
                yield order[step * self.batch_size : (step + 1) * self.batch_size]


def batches_taken(info: TrainerInfo) -> int:
    """Counts the batches of a trainer that `braid train` alone has operated.

    Batches that were skipped because their loss or a gradient was not finite are no steps.
    """
    return info.step + info.skipped


def run_steps(
    plan: Plan,
    dataset: Dataset,
    made: int,
    trainer: braid.Trainer,
    reporter: Reporter,
    stop: Callable[[], bool],
) -> None:
    """Makes the steps of the plan but for the first `made`, and reports each.

    Ends early, after the steps in flight, once `stop` returns true. While `depth` steps are in
    flight, the next batch is gathered. Raises BraidError.
    """
    in_flight: deque[tuple[Future[StepResult], int]] = deque()
    steps = plan.steps_per_epoch(dataset.rows)

    def collect() -> None:
        future, rows = in_flight[0]
        result = future.result()
        in_flight.popleft()
        if result.chunks:
            _report_split(result.chunks, reporter)
        known = not (result.reply_lost or result.skipped)
        reporter.step(result.loss if known else None, rows)

    with trainer.stream(plan.depth) as stream:
        try:
            for number, indices in enumerate(plan.batches(dataset.rows, made)):
                if stop():
                    break
                inputs, targets = dataset.gather(indices)
                if len(in_flight) >= plan.depth:
                    collect()
                report_split = plan.report_split and number == 0
                epoch, batch = divmod(made + number, steps)
                future = stream.step(
                    inputs,
                    targets,
                    report_split=report_split,
                    batch_id=f"epoch {epoch + 1} batch {batch + 1}",
                )
                in_flight.append((future, len(indices)))
            while in_flight:
                collect()
        except braid.BraidError as error:
            raise _name_last_batch(error, in_flight, plan.batch_size) from None


def _name_last_batch(
    error: braid.BraidError, in_flight: deque[tuple[Future[StepResult], int]], batch_size: int
) -> Exception:
    """Adds the option that leaves out the last batch of an epoch, if it is too small."""
    failed = (rows for future, rows in in_flight if future.done() and future.exception())
    rows = next(failed, batch_size)
    if rows == batch_size or "drop_last" not in error.message:
        return error
    return errors.Failure(
        f"{error.message}; the batch is the last of an epoch, with {rows} rows: "
        f"--drop-last leaves it out ({error.code.name})"
    )


def _report_split(chunks: tuple[Chunk, ...], reporter: Reporter) -> None:
    events = [
        {
            "stage": chunk.stage,
            "device": chunk.device,
            "rows": chunk.rows,
            "inputs": [str(list(shape)) for shape in chunk.input_shapes],
            "outputs": [str(list(shape)) for shape in chunk.output_shapes],
        }
        for chunk in chunks
    ]
    reporter.message(training_text(chunks).rstrip("\n"), {"event": "split", "chunks": events})
