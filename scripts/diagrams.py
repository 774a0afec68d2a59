#!/usr/bin/env python3
"""Draws the SVG files of docs/images from the text files next to them.

usage: diagrams.py [--check]

Diagrams are NAME.txt with one statement per line. Columns and rows may be fractions:
  cell WIDTH HEIGHT                      size of a cell of the grid
  node NAME COLUMN ROW TEXT|DETAIL       a box
  group COLUMN ROW COLUMN ROW TEXT       a frame around the boxes from one cell to another
  edge FROM TO [TEXT]                    an arrow to the right
  down FROM TO                           an arrow from a box to one in the row below, to its left
  back FROM TO ROW TEXT                  an arrow back to the left, below the row
Terminals are NAME.term: text as printed; lines that begin with `$ ` are commands.
--check: writes nothing; ends with status 1 if a file is not up to date.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
BOX_WIDTH, BOX_HEIGHT, MARGIN, PADDING, TITLE = 104, 46, 24, 12, 24
FONT = "font-family='Helvetica, Arial, sans-serif'"
LINE_COLOR, BOX_COLOR, FRAME_COLOR = "#455a64", "#e3f2fd", "#f5f7f8"


def text(x: float, y: float, content: str, size: int, extra: str = "") -> str:
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size}' {FONT} fill='#263238' {extra}>"
        f"{escape(content)}</text>"
    )


def arrow(points: list[tuple[float, float]]) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return (
        f"<polyline points='{path}' fill='none' stroke='{LINE_COLOR}' stroke-width='1.5' "
        "marker-end='url(#arrow)'/>"
    )


class Diagram:
    """A grid of boxes with arrows between them."""

    def __init__(self) -> None:
        self._cell = (150.0, 84.0)
        self._boxes: dict[str, tuple[float, float]] = {}  # centers
        self._frames: list[str] = []
        self._drawn: list[str] = []
        self._size = (0.0, 0.0)

    def statement(self, line: str) -> None:
        name, *words = line.split()
        getattr(self, f"_{name}")(*words)

    def svg(self) -> str:
        width, height = (value + MARGIN for value in self._size)
        return svg(width, height, self._frames + self._drawn)

    def _at(self, column: str, row: str) -> tuple[float, float]:
        """Returns the top left corner of a cell."""
        return (
            MARGIN + float(column) * self._cell[0],
            MARGIN + TITLE + float(row) * self._cell[1],
        )

    def _grow(self, x: float, y: float) -> None:
        self._size = (max(self._size[0], x), max(self._size[1], y))

    def _cell_size(self, width: str, height: str) -> None:
        self._cell = (float(width), float(height))

    def _node(self, name: str, column: str, row: str, *words: str) -> None:
        x, y = self._at(column, row)
        title, _, detail = " ".join(words).partition("|")
        center = (x + BOX_WIDTH / 2, y + BOX_HEIGHT / 2)
        self._boxes[name] = center
        self._grow(x + BOX_WIDTH, y + BOX_HEIGHT)
        middle = "text-anchor='middle'"
        self._drawn += [
            f"<rect x='{x:g}' y='{y:g}' width='{BOX_WIDTH}' height='{BOX_HEIGHT}' rx='5' "
            f"fill='{BOX_COLOR}' stroke='{LINE_COLOR}'/>",
            text(center[0], center[1] + (-2 if detail else 5), title, 14, middle),
        ]
        if detail:
            self._drawn.append(text(center[0], center[1] + 14, detail, 11, middle))

    def _group(self, left: str, top: str, right: str, bottom: str, *words: str) -> None:
        (x, y), (end_x, end_y) = self._at(left, top), self._at(right, bottom)
        x, y = x - PADDING, y - TITLE
        end_x, end_y = end_x + BOX_WIDTH + PADDING, end_y + BOX_HEIGHT + PADDING
        self._grow(end_x, end_y)
        self._frames += [
            f"<rect x='{x:g}' y='{y:g}' width='{end_x - x:g}' height='{end_y - y:g}' rx='8' "
            f"fill='{FRAME_COLOR}' stroke='#b0bec5'/>",
            text(end_x - 10, y + 16, " ".join(words), 12, "font-weight='bold' text-anchor='end'"),
        ]

    def _edge(self, source: str, target: str, *words: str) -> None:
        (x1, y1), (x2, y2) = self._boxes[source], self._boxes[target]
        x1, x2 = x1 + BOX_WIDTH / 2, x2 - BOX_WIDTH / 2
        self._drawn.append(arrow([(x1, y1), (x2 - 2, y2)]))
        if words:
            middle = "text-anchor='middle'"
            self._drawn.append(text((x1 + x2) / 2, y1 - 6, " ".join(words), 11, middle))

    def _down(self, source: str, target: str) -> None:
        (x1, y1), (x2, y2) = self._boxes[source], self._boxes[target]
        top, bottom = y1 + BOX_HEIGHT / 2, y2 - BOX_HEIGHT / 2
        turn = (top + bottom) / 2 - 6
        self._drawn.append(arrow([(x1, top), (x1, turn), (x2, turn), (x2, bottom - 2)]))

    def _back(self, source: str, target: str, row: str, *words: str) -> None:
        (x1, y1), (x2, y2) = self._boxes[source], self._boxes[target]
        turn = self._at("0", row)[1] + BOX_HEIGHT / 2
        start, end = y1 + BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
        self._drawn.append(arrow([(x1, start), (x1, turn), (x2, turn), (x2, end + 2)]))
        middle = "text-anchor='middle'"
        self._drawn.append(text((x1 + x2) / 2, turn - 6, " ".join(words), 11, middle))
        self._grow(x1, turn)


def svg(width: float, height: float, drawn: list[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' "
        f"viewBox='0 0 {width:g} {height:g}'>\n"
        "<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
        f"markerHeight='7' orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='{LINE_COLOR}'/>"
        "</marker></defs>\n"
        f"<rect width='{width:g}' height='{height:g}' fill='white'/>\n"
    )
    return head + "\n".join(drawn) + "\n</svg>\n"


def diagram(source: str) -> str:
    made = Diagram()
    for line in source.splitlines():
        if line and not line.startswith("#"):
            made.statement(line.replace("cell ", "cell_size ", 1))
    return made.svg()


def terminal(source: str) -> str:
    lines = source.rstrip("\n").split("\n")
    step, size, top = 18, 13, 44
    width = max(map(len, lines)) * size * 0.602 + 2 * MARGIN
    height = top + step * len(lines) + 8
    drawn = [f"<rect width='{width:g}' height='{height:g}' rx='8' fill='#1e272c'/>"]
    for x, color in ((20, "#ff5f56"), (38, "#ffbd2e"), (56, "#27c93f")):
        drawn.append(f"<circle cx='{x}' cy='18' r='5' fill='{color}'/>")
    for number, line in enumerate(lines):
        color = "#80cbc4" if line.startswith("$ ") else "#eceff1"
        drawn.append(
            f"<text x='{MARGIN}' y='{top + step * number}' font-size='{size}' xml:space='preserve' "
            f"font-family='DejaVu Sans Mono, Menlo, Consolas, monospace' fill='{color}'>"
            f"{escape(line)}</text>"
        )
    return svg(width, height, drawn)


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for source in sorted([*IMAGES.glob("*.txt"), *IMAGES.glob("*.term")]):
        draw = diagram if source.suffix == ".txt" else terminal
        made, target = draw(source.read_text()), source.with_suffix(".svg")
        if check:
            if not target.exists() or target.read_text() != made:
                stale.append(target.name)
        else:
            target.write_text(made)
    if stale:
        print(f"diagrams.py: out of date: {', '.join(stale)} (run scripts/diagrams.py)")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
