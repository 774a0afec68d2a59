"""What a trace took for granted of the number of rows.

Where the model asks for it, as in `if x.shape[0] > 40`, a trace goes the one way, and keeps the
condition as a guard. A package goes this way for all batches.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv, ShapeGuard

from braid._export import ExportError
from braid.exporter import source

# One row is compared with the module, and may be refused by it, as by batch norm.
_FEWEST = 2
_MOST = 1 << 20


def note_fixed(shapes: ShapeEnv, outermost: str) -> dict[sympy.Symbol, str]:
    """Takes the lines at which numbers that were any get a value. outermost: the file that calls
    the model."""
    lines: dict[sympy.Symbol, str] = {}
    replace = shapes._set_replacement

    def set_replacement(symbol: sympy.Symbol, *args: Any, **others: Any) -> None:
        frame = source.called_from(sys._getframe(1), outermost)
        lines.setdefault(symbol, source.line_of([frame] if frame else []))
        replace(symbol, *args, **others)

    shapes._set_replacement = set_replacement
    return lines


def check_batch_is_free(
    shapes: ShapeEnv, symbol: sympy.Symbol, traced: int, fixed: Mapping[sympy.Symbol, str]
) -> None:
    """ExportError, with the line, if the model decides on the number of rows. traced: how many
    there were. fixed: as `note_fixed` took it."""
    asked = {
        guard.expr: line
        for guard in shapes.guards
        if symbol in guard.expr.free_symbols and (line := _line(guard))
    }
    for condition, line in asked.items():
        other = _rows_without(condition, symbol)
        if other is None:
            continue
        if isinstance(condition, sympy.Eq):
            raise _made_a_number(traced, line)
        raise ExportError(
            f"forward takes another course for {other} rows than for {traced}; a package has one "
            f"for batches of any size" + source.at(line)
        )
    if shapes.replace(symbol) != symbol:
        raise _made_a_number(traced, fixed.get(symbol, ""))


def _line(guard: ShapeGuard) -> str:
    """Of the model, where it asked. What PyTorch asks for itself it answers in the same way for
    all batches, but for how it computes."""
    frame = guard.sloc.framework_loc
    return source.line_of([frame]) if isinstance(frame, traceback.FrameSummary) else ""


def _made_a_number(traced: int, line: str) -> ExportError:
    return ExportError(
        f"forward makes a Python number of the number of rows, which the package would have for "
        f"{traced} rows alone" + source.at(line)
    )


def _rows_without(condition: sympy.Basic, symbol: sympy.Symbol) -> int | None:
    """The fewest rows that are found for which `condition` does not hold."""
    return next((rows for rows in _candidates(condition, symbol)
                 if condition.subs(symbol, rows) == sympy.false), None)


def _candidates(condition: sympy.Basic, symbol: sympy.Symbol) -> Iterable[int]:
    rows = {*range(_FEWEST, 130), 1 << 8, 1000, 1 << 10, 1 << 12, 1 << 16, _MOST}
    numbers = [int(each) for each in condition.atoms(sympy.Number) if each.is_finite]
    if isinstance(condition, sympy.core.relational.Relational):
        difference = sympy.expand(condition.lhs - condition.rhs)
        slope = difference.coeff(symbol, 1)
        if slope.is_Number and slope != 0:
            numbers.append(int(-difference.coeff(symbol, 0) / slope))
    rows |= {near for number in numbers for near in range(number - 1, number + 3)}
    return sorted(each for each in rows if _FEWEST <= each <= _MOST)
