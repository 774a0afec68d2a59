"""Progress of jobs as text, and as a bar on a terminal."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braid.jobs import JobEvent, JobProgress


# Time constant of the average rate from which the time left is computed.
_RATE_SECONDS = 15.0


class Rate:
    """Exponential average of the rate of a job. Not thread-safe.

    Other processes on the server's cores change the rate within seconds, by large factors.
    """

    def __init__(self) -> None:
        self._average = 0.0
        self._time = -math.inf

    def add(self, rows_per_second: float, now: float) -> float:
        """Returns the average up to `now`, in seconds. Skips 0: the job does not run."""
        if rows_per_second > 0:
            kept = math.exp((self._time - now) / _RATE_SECONDS)
            self._average = rows_per_second + kept * (self._average - rows_per_second)
            self._time = now
        return self._average


def figures(progress: JobProgress, average: float | None = None) -> str:
    """Returns position, loss, rate and time left, as in "step 20/60  loss 0.5012  900 rows/s".

    average: rows per second for the time left; None: those of `progress`.
    """
    parts = []
    if progress.total_steps:
        step = str(progress.step).rjust(len(str(progress.total_steps)))
        parts.append(f"epoch {progress.epoch}/{progress.epochs}")
        parts.append(f"step {step}/{progress.total_steps}")
    elif progress.step:
        parts.append(f"epoch {progress.epoch}/{progress.epochs}")
        parts.append(f"step {progress.step}")
    elif progress.total_rows:
        row = str(progress.rows).rjust(len(str(progress.total_rows)))
        parts.append(f"row {row}/{progress.total_rows}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.4g}")
    if progress.rows_per_second > 0:
        parts.append(f"{progress.rows_per_second:.0f} rows/s")
        if progress.total_rows:
            rate = average or progress.rows_per_second
            left = (progress.total_rows - progress.rows) / rate
            parts.append(f"{duration_text(left)} left")
    return "  ".join(parts)


def duration_text(seconds: float) -> str:
    """Returns minutes and seconds, as in "0:07", or hours, minutes and seconds."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressBar:
    """Draws a bar in place until `close`, which leaves nothing behind."""

    def __init__(self, name: str, file: Any = None) -> None:
        """name: of the job. file: where to draw; None: stderr."""
        from rich import progress as rich
        from rich.console import Console
        from rich.table import Column

        text = Column(no_wrap=True)
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}", table_column=text, markup=False),
            rich.BarColumn(),
            rich.TextColumn("{task.fields[figures]}", table_column=text, markup=False),
            console=Console(file=file or sys.stderr, highlight=False),
            auto_refresh=False,
            transient=True,
        )
        self._name = name
        self._rate = Rate()
        self._task = self._bar.add_task(name, total=None, figures="")
        self._bar.start()

    def update(self, event: JobEvent) -> None:
        if event.transition is not None:
            self._bar.update(self._task, description=f"{self._name} {event.transition.state}")
        if event.progress is not None:
            self.show(event.progress)
        else:
            self._bar.refresh()

    def line(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def show(self, progress: JobProgress) -> None:
        """Draws the bar at this position."""
        self._bar.update(
            self._task,
            completed=progress.rows,
            total=progress.total_rows or None,
            figures=figures(progress, self._rate.add(progress.rows_per_second, time.monotonic())),
        )
        self._bar.refresh()

    def close(self) -> None:
        self._bar.stop()
