"""Text and JSON for stdout: plain where stdout is not a terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

_UNITS = ("KiB", "MiB", "GiB", "TiB")
# Without a terminal, no line is folded.
_UNLIMITED_COLUMNS = 1_000_000


def printable(text: str) -> str:
    """Replaces control characters by spaces: text from the network must not steer the terminal."""
    return "".join(" " if c < " " or "\x7f" <= c < "\xa0" else c for c in text)


def print_line(text: str) -> None:
    sys.stdout.write(f"{printable(text)}\n")


def print_json(value: Any) -> None:
    """Prints `value` on one line. Numbers that are not finite become null."""
    sys.stdout.write(f"{json_text(value)}\n")


def count_text(number: int, noun: str) -> str:
    """Returns "1 step" or "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def json_text(value: Any) -> str:
    try:
        return _dump(value)
    except ValueError:
        return _dump(_finite(value))


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def bytes_text(size: int) -> str:
    """Returns a size as in "512 B", "1.5 KiB" and "3.2 GiB"."""
    if size < 1024:
        return f"{size} B"
    value, unit = size / 1024, 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}"


def time_text(time: datetime) -> str:
    """Returns a time in UTC as in "2026-11-26 14:05:00Z"."""
    return time.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells, the first the headings, in columns two spaces apart.

    A column whose cells all begin with a digit is flush right, others are flush left. A terminal
    shows the headings in bold and folds cells that are too wide; elsewhere no line is folded.
    """
    sys.stdout.write(table_text(rows))


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Returns the table of `print_table`, with a newline at its end."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, heading in enumerate(rows[0]):
        cells = [row[column] for row in rows[1:]]
        right = bool(cells) and all(cell[:1].isdecimal() for cell in cells)
        table.add_column(
            Text(printable(heading)), justify="right" if right else "left", overflow="fold"
        )
    for row in rows[1:]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else _UNLIMITED_COLUMNS, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())
