"""Curves of a job's metrics: as text for a terminal, or as a PNG or SVG file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from braid.cli import errors
from braid.cli.output import count_text, printable
from braid.jobs import Series

SUFFIXES = (".png", ".svg")
_PANEL_LINES = 10
# Dots of a braille character, by row and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800
_MARK, _ASCII_MARK, _ASCII_DOT = "●", "o", "."
_MIN_COLUMNS = 8
# From this number of points on, a curve in a picture has no marks.
_MAX_MARKS = 50
_INCHES = (8.0, 2.6)


def panels(series: Mapping[str, Series]) -> dict[str, dict[str, Series]]:
    """Groups metrics that belong in one plot: "loss" and "evaluation/loss" share "loss"."""
    grouped: dict[str, dict[str, Series]] = {}
    for name in sorted(series, key=lambda name: "/" in name):
        grouped.setdefault(name.rpartition("/")[2], {})[name] = series[name]
    # Panels with a metric of training steps come before those with evaluations only.
    return dict(sorted(grouped.items(), key=lambda panel: panel[0] not in panel[1]))


def text_lines(series: Mapping[str, Series], width: int, *, ascii_only: bool = False) -> list[str]:
    """Returns a plot for each panel, one below the other, in lines of at most `width` cells.

    Metrics of steps are curves, those of evaluations marks. All have the same range of steps.
    """
    steps = np.concatenate([each.steps for each in series.values()])
    first, last = int(steps.min()), int(steps.max())
    lines: list[str] = []
    for panel in panels(series).values():
        lines += ["", *_panel_lines(panel, first, last, width, ascii_only)]
    return lines[1:]


def write_file(path: str, title: str, series: Mapping[str, Series]) -> None:
    """Writes a PNG or SVG, by the suffix of `path`. Needs matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise errors.Failure(
            "--output: matplotlib is not installed (pip install 'braid-client[plot]')"
        ) from None
    grouped = panels(series)
    figure = Figure(figsize=(_INCHES[0], 0.6 + _INCHES[1] * len(grouped)), layout="constrained")
    figure.suptitle(printable(title))
    grid: Any = figure.subplots(len(grouped), 1, sharex=True, squeeze=False)
    for axes, (name, panel) in zip(grid[:, 0], grouped.items()):
        for metric, each in panel.items():
            mark = "o" if "/" in metric and len(each.steps) <= _MAX_MARKS else ""
            label = printable(metric)
            axes.plot(each.steps, each.values, marker=mark, markersize=4, linewidth=1.2, label=label)
        axes.set_ylabel(printable(name))
        axes.grid(alpha=0.3)
        axes.legend(loc="best")
    grid[-1, 0].set_xlabel("step")
    # Equal metrics give equal files. Text in an SVG stays text.
    with matplotlib.rc_context({"svg.hashsalt": "braid", "svg.fonttype": "none"}):
        try:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.endswith(".svg") else None)
        except OSError as error:
            raise errors.usage(path, "cannot be written", error.strerror or str(error)) from None


def _panel_lines(
    panel: Mapping[str, Series], first: int, last: int, width: int, ascii_only: bool
) -> list[str]:
    finite = {name: _finite(each) for name, each in panel.items()}
    legend = "  ".join(
        f"{printable(name)} {_legend_mark(name, ascii_only)}{_range_text(panel[name], finite[name])}"
        for name in panel
    )
    values = np.concatenate([each.values for each in finite.values()])
    if values.size == 0:
        return [legend[:width]]
    low, high = float(values.min()), float(values.max())
    labels = _axis_labels(low, high, _PANEL_LINES)
    margin = max(map(len, labels)) + 1
    columns = max(width - margin - 1, _MIN_COLUMNS)
    canvas = _Canvas(columns, _PANEL_LINES, ascii_only)
    for name, each in finite.items():
        x = _scaled(each.steps.astype(np.float64), first, last)
        y = 1 - _scaled(each.values, low, high)
        if "/" in name:
            canvas.mark(x, y)
        else:
            canvas.curve(x, y)
    axis, corner, floor = ("|", "+", "-") if ascii_only else ("┤", "└", "─")
    drawn = [
        f"{label.rjust(margin - 1)} {axis}{row}".rstrip()
        for label, row in zip(labels, canvas.rows())
    ]
    steps = f"{first}{str(last).rjust(columns - len(str(first)))}"
    return [
        legend[:width],
        *drawn,
        f"{' ' * margin}{corner}{floor * columns}",
        f"{' ' * (margin + 1)}{steps}" if last > first else f"{' ' * (margin + 1)}{first}",
    ]


def _legend_mark(name: str, ascii_only: bool) -> str:
    if "/" in name:
        return _ASCII_MARK if ascii_only else _MARK
    return _ASCII_DOT if ascii_only else "⠤"


def _range_text(all_values: Series, finite: Series) -> str:
    left_out = len(all_values.values) - len(finite.values)
    text = f"  last {finite.values[-1]:.4g}" if len(finite.values) else ""
    return text + (f"  ({count_text(left_out, 'value')} not finite)" if left_out else "")


def _axis_labels(low: float, high: float, lines: int) -> list[str]:
    """Returns labels for the top, the middle and the bottom; the other lines have none."""
    labels = [""] * lines
    middle = lines // 2
    labels[0], labels[-1] = f"{high:.4g}", f"{low:.4g}"
    if high > low:
        labels[middle] = f"{high + (low - high) * middle / (lines - 1):.4g}"
    return labels


def _finite(series: Series) -> Series:
    kept = np.isfinite(series.values)
    return Series(series.steps[kept], series.values[kept])


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Maps [low, high] to [0, 1]; the middle if both are equal."""
    if high <= low:
        return np.full(len(values), 0.5)
    # Halves, because the range of two large numbers may overflow.
    scaled: np.ndarray = (values / 2 - low / 2) / (high / 2 - low / 2)
    return scaled


class _Canvas:
    """Characters with curves of braille dots and marks. Coordinates are from 0 to 1, down."""

    def __init__(self, columns: int, lines: int, ascii_only: bool) -> None:
        self._ascii_only = ascii_only
        # Dots per character.
        self._wide, self._high = (1, 1) if ascii_only else (2, 4)
        self._dots = np.zeros((lines * self._high, columns * self._wide), bool)
        self._marks = np.zeros((lines, columns), bool)

    def curve(self, x: np.ndarray, y: np.ndarray) -> None:
        """Draws lines between consecutive points, x ascending."""
        height, width = self._dots.shape
        columns = np.rint(x * (width - 1)).astype(int)
        rows = np.rint(y * (height - 1)).astype(int)
        previous: tuple[int, int] | None = None
        # A column with many points is one vertical line: a job may have millions of steps.
        starts = np.flatnonzero(np.diff(columns, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(columns)]):
            column, part = int(columns[start]), rows[start:end]
            if previous is not None:
                self._line(*previous, column, int(part[0]))
            self._dots[part.min() : part.max() + 1, column] = True
            previous = (column, int(part[-1]))

    def mark(self, x: np.ndarray, y: np.ndarray) -> None:
        lines, columns = self._marks.shape
        self._marks[
            np.rint(y * (lines - 1)).astype(int), np.rint(x * (columns - 1)).astype(int)
        ] = True

    def rows(self) -> list[str]:
        lines, columns = self._marks.shape
        return ["".join(self._cell(row, at) for at in range(columns)) for row in range(lines)]

    def _line(self, column: int, row: int, to_column: int, to_row: int) -> None:
        for at in range(column, to_column + 1):
            spans = [
                row + (to_row - row) * (edge - column) / (to_column - column)
                for edge in (max(at - 0.5, column), min(at + 0.5, to_column))
            ]
            low, high = sorted(math.floor(span + 0.5) for span in spans)
            self._dots[low : high + 1, at] = True

    def _cell(self, row: int, column: int) -> str:
        if self._marks[row, column]:
            return _ASCII_MARK if self._ascii_only else _MARK
        top, left = row * self._high, column * self._wide
        dots = self._dots[top : top + self._high, left : left + self._wide]
        if not dots.any():
            return " "
        if self._ascii_only:
            return _ASCII_DOT
        return chr(_BRAILLE + sum(_DOTS[y][x] for y, x in zip(*np.nonzero(dots))))
