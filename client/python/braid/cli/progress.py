"""Progress of `braid train`: a bar on a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from braid.cli.output import json_text, printable

# Share of the average loss that each step replaces.
_SMOOTHING = 0.1
_LINE_SECONDS = 1.0
_DRAW_SECONDS = 0.1

Clock = Callable[[], float]


@dataclass
class Progress:
    """Position in the training. epoch counts from 1; loss is smoothed."""

    epochs: int
    steps: int
    epoch: int = 1
    step: int = 0
    loss: float = 0.0
    rows_per_second: float = 0.0

    @property
    def epoch_text(self) -> str:
        return f"epoch {self.epoch}/{self.epochs}"

    @property
    def figures(self) -> str:
        """Step, loss and rate. The step is as wide as the last one, so that nothing moves."""
        step = str(self.step).rjust(len(str(self.steps)))
        rate = rate_text(self.rows_per_second)
        return f"{step}/{self.steps}  loss {loss_text(self.loss)}  {rate} rows/s"


def loss_text(loss: float) -> str:
    size = abs(loss)
    return f"{loss:.3e}" if size != 0 and (size < 1e-3 or size >= 1e4) else f"{loss:.4f}"


def rate_text(rows_per_second: float) -> str:
    return f"{rows_per_second:.1f}" if rows_per_second < 10 else f"{rows_per_second:.0f}"


class Printer:
    """Prints a line per second and one for each epoch. Base of the other kinds of output."""

    def start(self, progress: Progress, now: float) -> None:
        """Called once, before the first step and after the first messages."""
        self._printed = now

    def step(self, progress: Progress, loss: float | None, now: float) -> None:
        if now - self._printed >= _LINE_SECONDS:
            self._printed = now
            self.line(f"{progress.epoch_text}  step {progress.figures}")

    def epoch_ended(self, now: float) -> None:
        self._printed = now

    def message(self, line: str, event: Mapping[str, Any]) -> None:
        """Prints a line, or `event` as JSON."""
        self.line(line)

    def line(self, text: str) -> None:
        _write("".join(f"{printable(line)}\n" for line in text.split("\n")))

    def stop(self) -> None:
        """Called once, after the last step. Messages may follow."""


class JsonPrinter(Printer):
    """Prints an object for each step, epoch and message."""

    def step(self, progress: Progress, loss: float | None, now: float) -> None:
        self.message("", {
            "event": "step",
            "epoch": progress.epoch,
            "step": progress.step,
            "steps": progress.steps,
            "loss": loss,
            "rows_per_second": progress.rows_per_second,
        })  # fmt: skip

    def message(self, line: str, event: Mapping[str, Any]) -> None:
        _write(f"{json_text(event)}\n")


class BarPrinter(Printer):
    """Draws a bar in place, at most ten times a second, and prints a line for each epoch."""

    def __init__(self, file: Any = None) -> None:
        from rich import progress as rich
        from rich.console import Console
        from rich.table import Column

        text = Column(no_wrap=True)
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}", table_column=text),
            rich.BarColumn(),
            rich.TextColumn("{task.fields[figures]}", table_column=text),
            console=Console(file=file, highlight=False),
            # The thread that refreshes would compete with the training for Python's lock.
            auto_refresh=False,
            transient=True,
        )
        self._task: Any = None

    def start(self, progress: Progress, now: float) -> None:
        self._task = self._bar.add_task("", total=progress.steps, figures="")
        self._update(progress)
        self._printed = -math.inf
        self._bar.start()

    def step(self, progress: Progress, loss: float | None, now: float) -> None:
        self._update(progress)
        if now - self._printed >= _DRAW_SECONDS:
            self._printed = now
            self._bar.refresh()

    def _update(self, progress: Progress) -> None:
        self._bar.update(
            self._task,
            completed=progress.step,
            description=progress.epoch_text,
            figures=progress.figures,
        )

    def line(self, text: str) -> None:
        self._bar.console.print(
            "\n".join(map(printable, text.split("\n"))), markup=False, soft_wrap=True
        )

    def stop(self) -> None:
        self._bar.stop()


class Reporter:
    """Counts what a training run has done, and has it printed.

    Not counted in `total_steps` and `total_rows`: the steps before the run. `mean_loss` is that
    of the last epoch that ended; NaN if no loss was known; 0 before.
    """

    def __init__(
        self, printer: Printer, epochs: int, steps: int, made: int, clock: Clock = time.monotonic
    ) -> None:
        """steps: in an epoch. made: of all steps, those made before."""
        self.total_steps = 0
        self.total_rows = 0
        self.mean_loss = 0.0
        self._printer = printer
        self._clock = clock
        self._progress = Progress(epochs, steps, 1 + made // steps, made % steps)
        # Exponential average before its bias towards 0 is corrected, and the correction.
        self._average = self._weight = 0.0
        self._start_epoch(clock())

    def __enter__(self) -> Reporter:
        self._printer.start(self._progress, self._clock())
        return self

    def __exit__(self, *_: object) -> None:
        self._printer.stop()

    def message(self, line: str, event: Mapping[str, Any]) -> None:
        self._printer.message(line, event)

    def step(self, loss: float | None, rows: int) -> None:
        """Counts a step. loss: mean over the rows; None: unknown, left out of the averages."""
        now = self._clock()
        progress = self._progress
        self.total_steps += 1
        self.total_rows += rows
        self._rows += rows
        if loss is not None:
            self._loss_sum += loss * rows
            self._loss_rows += rows
            self._average += _SMOOTHING * (loss - self._average)
            self._weight += _SMOOTHING * (1 - self._weight)
        progress.step += 1
        progress.loss = self._average / self._weight if self._weight else math.nan
        elapsed = now - self._epoch_start
        progress.rows_per_second = self._rows / elapsed if elapsed > 0 else 0.0
        self._printer.step(progress, loss, now)
        if progress.step == progress.steps:
            self._end_epoch(now)

    def _end_epoch(self, now: float) -> None:
        progress = self._progress
        seconds = now - self._epoch_start
        self.mean_loss = self._loss_sum / self._loss_rows if self._loss_rows else math.nan
        rate = self._rows / seconds if seconds > 0 else 0.0
        self.message(
            f"{progress.epoch_text}  {progress.steps} steps  mean loss {loss_text(self.mean_loss)}"
            f"  {rate_text(rate)} rows/s  {seconds:.1f} s",
            {
                "event": "epoch",
                "epoch": progress.epoch,
                "steps": progress.steps,
                "mean_loss": self.mean_loss,
                "rows_per_second": rate,
                "seconds": seconds,
            },
        )
        progress.epoch += 1
        progress.step = 0
        self._start_epoch(now)
        self._printer.epoch_ended(now)

    def _start_epoch(self, now: float) -> None:
        self._epoch_start = now
        self._rows = 0
        # Over the rows whose loss is known.
        self._loss_sum = 0.0
        self._loss_rows = 0


def printer(json: bool) -> Printer:
    """Returns the kind of output that fits stdout."""
    if json:
        return JsonPrinter()
    return BarPrinter() if sys.stdout.isatty() else Printer()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
