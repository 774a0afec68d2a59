"""Training over a PyTorch DataLoader, through the steps of a trainer."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from braid import _infer, _specs
from braid._job_progress import ProgressBar
from braid._requests import Tensors
from braid.errors import BraidError
from braid.jobs import JobProgress
from braid.results import EvaluationResult, StepResult
from braid.trainer import Trainer

if TYPE_CHECKING:
    from braid.client import Client

_Batch = tuple[Tensors, Tensors]
_DRAW_SECONDS = 0.1


@dataclass(frozen=True)
class FitResult:
    """Result of `braid.fit`.

    trainer: stays on the server until `trainer.delete()`.
    losses: float64 [N], the loss of each step; NaN if it was skipped, or its reply was lost.
    evaluations: one after each epoch; empty without `evaluate`.
    version: published version; None without `publish`.
    """

    trainer: Trainer
    losses: np.ndarray
    evaluations: tuple[EvaluationResult, ...]
    version: int | None


def fit(
    client: Client,
    model: str | Trainer,
    dataloader: Iterable[Any],
    *,
    epochs: int = 1,
    evaluate: Iterable[Any] | None = None,
    metrics: Sequence[str] = (),
    publish: bool = False,
    depth: int = 4,
    progress: bool | None = None,
    **options: Any,
) -> FitResult:
    """Trains a served model on the batches of a PyTorch DataLoader, with one step for each.

    For data on the server, which needs no connected client, use `Client.jobs`. Sets the `batch_id`
    of the steps to "epoch 1 batch 1" and so on.

    model: name of a served model; or a trainer, to continue its training.
    dataloader: iterated once per epoch. A batch is a pair of inputs and targets, each a tensor or a
        dict by name; or all tensors in one dict, or in the order of the model's inputs and then of
        the targets.
    evaluate: DataLoader to evaluate on after each epoch.
    metrics: metrics of the evaluations besides the loss, as for `Trainer.evaluate`.
    publish: publish the weights at the end, and wait until the version is durable.
    depth: steps in flight.
    progress: show a progress bar on stderr; None: if it is a terminal.
    options: arguments of `Client.create_trainer`, such as `loss` and `optimizer`. Without `name`,
        the trainer gets a new name, and is deleted if the training fails.
    Raises ValueError for a batch that does not fit the names of inputs and targets.
    """
    if epochs < 1:
        raise ValueError(f"epochs: {epochs} (expected at least 1)")
    if isinstance(model, Trainer):
        if options:
            raise ValueError(f"{next(iter(options))}: not allowed when `model` is a Trainer")
        trainer, is_temporary = model, False
    else:
        is_temporary = options.get("name") is None
        name = f"fit-{uuid.uuid4().hex[:12]}" if is_temporary else options["name"]
        trainer = client.create_trainer(model, **{**options, "name": name})
    try:
        batches = _Batches(client, trainer)
        report = _Report(trainer.name, dataloader, epochs, progress)
        evaluations = []
        with report:
            for epoch in range(1, epochs + 1):
                training = batches.of(dataloader, "dataloader", epoch)
                _train(trainer, batches, epoch, training, depth, report)
                if evaluate is not None:
                    held_out = batches.of(evaluate, "evaluate", epoch)
                    evaluations.append(trainer.evaluate(held_out, metrics=metrics))
                report.end_epoch(evaluations[-1] if evaluations else None)
        version = trainer.publish(wait_durable=True) if publish else None
    except BaseException:
        if is_temporary:
            with contextlib.suppress(BraidError):  # The first error is the one to report.
                trainer.delete()
        raise
    return FitResult(trainer, np.array(report.losses), tuple(evaluations), version)


def _train(
    trainer: Trainer,
    batches: _Batches,
    epoch: int,
    training: Iterator[_Batch],
    depth: int,
    report: _Report,
) -> None:
    """Runs the steps of an epoch on the batches `training`, and reports each."""
    in_flight: deque[tuple[Future[StepResult], int]] = deque()
    with trainer.stream(depth) as stream:
        for number, (inputs, targets) in enumerate(training, 1):
            future = stream.step(inputs, targets, batch_id=f"epoch {epoch} batch {number}")
            in_flight.append((future, batches.rows(inputs)))
            while in_flight and in_flight[0][0].done():
                future, rows = in_flight.popleft()
                report.step(future.result(), rows)
    for future, rows in in_flight:
        report.step(future.result(), rows)


class _Batches:
    """Splits batches of a DataLoader into inputs and targets by name."""

    def __init__(self, client: Client, trainer: Trainer) -> None:
        info = trainer.info()
        mode = info.options.get("loss_mode", "central")
        if mode == "client":
            raise ValueError("loss_mode: 'client' (fit cannot compute the loss)")
        losses = [] if mode == "model" else info.losses
        names = [name for loss in losses for name in _specs.target_names(loss)]
        self._targets = list(dict.fromkeys(names))
        self._inputs = [each.name for each in client.model_metadata(info.model).inputs]
        self._batch_dims = _infer.batch_dims(client._channel, info.model)

    def rows(self, inputs: Tensors) -> int:
        """Returns the number of rows of a batch."""
        for name, tensor in inputs.items():
            return sum(np.shape(tensor)[self._batch_dims.get(name, 0) :][:1])
        return 0

    def of(self, loader: Iterable[Any], field: str, epoch: int) -> Iterator[_Batch]:
        """Yields the batches of an epoch. Raises ValueError if there are none.

        field: argument name of the loader for messages.
        """
        empty = True
        for batch in loader:
            empty = False
            yield self._split(batch, field)
        if empty:
            raise ValueError(
                f"{field}: no batch in epoch {epoch} (expected batches each time it is iterated)"
            )

    def _split(self, batch: Any, field: str) -> _Batch:
        if isinstance(batch, Mapping):
            inputs = {name: each for name, each in batch.items() if name in self._inputs}
            targets = {name: each for name, each in batch.items() if name not in self._inputs}
            return inputs, targets
        parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
        if len(parts) == 2 and any(isinstance(part, (Mapping, list, tuple)) for part in parts):
            return (
                _named(parts[0], self._inputs, field), _named(parts[1], self._targets, field)
            )  # fmt: skip
        named = _named(parts, [*self._inputs, *self._targets], field)
        return (
            {name: named[name] for name in self._inputs},
            {name: named[name] for name in self._targets},
        )


def _named(part: Any, names: Sequence[str], field: str) -> Tensors:
    if isinstance(part, Mapping):
        return part
    values = list(part) if isinstance(part, (list, tuple)) else [part]
    if len(values) != len(names):
        raise ValueError(
            f"{field}: a batch has {len(values)} {'tensor' if len(values) == 1 else 'tensors'} "
            f"(expected {len(names)}: "
            f"{', '.join(names)}; or a dict)"
        )
    return dict(zip(names, values))


class _Report:
    """Losses of the steps, and their progress on a terminal."""

    def __init__(
        self, name: str, dataloader: Iterable[Any], epochs: int, progress: bool | None
    ) -> None:
        self.losses: list[float] = []
        self._name = name
        self._epoch, self._epochs = 1, epochs
        self._steps = _length(dataloader) * epochs
        self._rows = 0
        self._start = self._drawn = time.monotonic()
        self._bar: ProgressBar | None = None
        self._shows = sys.stderr.isatty() if progress is None else progress

    def __enter__(self) -> None:
        if self._shows:
            self._bar = ProgressBar(self._name)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def step(self, result: StepResult, rows: int) -> None:
        self.losses.append(math.nan if result.skipped or result.reply_lost else result.loss)
        self._rows += rows
        now = time.monotonic()
        if self._bar is not None and now - self._drawn >= _DRAW_SECONDS:
            self._drawn = now
            self._bar.show(self._progress(now))

    def end_epoch(self, evaluation: EvaluationResult | None) -> None:
        if self._bar is not None:
            self._bar.show(self._progress(time.monotonic()))
            if evaluation is not None:
                values = {"loss": evaluation.loss, **evaluation.metrics}
                figures = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
                self._bar.line(f"epoch {self._epoch}/{self._epochs}  evaluation  {figures}")
        self._epoch = min(self._epoch + 1, self._epochs)

    def _progress(self, now: float) -> JobProgress:
        step = len(self.losses)
        seconds = now - self._start
        return JobProgress(
            rows=self._rows,
            # Batches may differ in size.
            total_rows=round(self._rows / step * self._steps),
            step=step,
            total_steps=self._steps,
            epoch=self._epoch,
            epochs=self._epochs,
            loss=self.losses[-1],
            rows_per_second=self._rows / seconds if seconds > 0 else 0.0,
        )


def _length(dataloader: Iterable[Any]) -> int:
    """Returns the number of batches; 0: unknown."""
    try:
        return len(dataloader)  # type: ignore[arg-type]
    except TypeError:
        return 0
