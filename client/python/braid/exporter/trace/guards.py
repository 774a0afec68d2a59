"""What a trace took for granted of the number of rows.

Where it is asked for, as in `if x.shape[0] > 40` or `y[:50]`, a trace goes the one way. A package
goes this way for all batches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy
import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv, _suppress_guards

from braid._export import ExportError
from braid.exporter import source

# One row is compared with the module, and may be refused by it, as by batch norm.
_FEWEST = 2
_MOST = 1 << 20
# Other numbers of rows that a module is traced with at most, and how many there may be.
_MOST_COURSES = 6
_MOST_TRACED = 256

# Functions of PyTorch's that ask how to compute, or how to lay out what they give: what that is
# does not depend on the answer.
_OF_LAYOUT = {
    (os.path.join("_subclasses", "fake_impls.py"), "conv"),
    (os.path.join("_prims_common", "__init__.py"), "check_contiguous_sizes_strides"),
}

# How an `if` of the model's gets to where it is answered.
_OF_NUMBERS = (
    os.path.join("torch", "__init__.py"),
    os.path.join("fx", "experimental", "sym_node.py"),
    os.path.join("fx", "experimental", "symbolic_shapes.py"),
    os.path.join("fx", "experimental", "recording.py"),
    os.path.join("braid", "exporter", "trace", "guards.py"),
)

# PyTorch's own functions of numbers, in NumPy.
_FUNCTIONS = {
    "CeilToInt": numpy.ceil,
    "CleanDiv": numpy.floor_divide,
    "FloatPow": numpy.power,
    "FloatTrueDiv": numpy.true_divide,
    "FloorDiv": numpy.floor_divide,
    "FloorToInt": numpy.floor,
    "IntTrueDiv": numpy.true_divide,
    "Max": numpy.maximum,
    "Min": numpy.minimum,
    "Mod": numpy.mod,
    "PowByNatural": numpy.power,
    "PythonMod": numpy.mod,
    "RoundToInt": numpy.round,
    "ToFloat": lambda number: number + 0.0,
    "TruncToInt": numpy.trunc,
}


@dataclass
class RecordedGuards:
    """What a trace was told of numbers that were any.

    conditions: what holds for the batch that is traced, and the line of the model that made it be
        asked; empty: none did.
    fixed: the lines at which numbers got a value.
    """

    conditions: dict[sympy.Basic, str] = field(default_factory=dict)
    fixed: dict[sympy.Symbol, str] = field(default_factory=dict)


def record(shapes: ShapeEnv, outermost: str, binding: bool = True) -> RecordedGuards:
    """Takes the answers from now on. outermost: the file that calls the model. binding: whether the
    number of rows becomes what an answer says."""
    answers = RecordedGuards()
    replace, evaluate = shapes._set_replacement, shapes.evaluate_expr

    def line() -> str:
        frame = source.model_frame(sys._getframe(2), outermost)
        return source.innermost_line([frame] if frame else [])

    def set_replacement(symbol: sympy.Symbol, *args: Any, **others: Any) -> None:
        if symbol not in answers.fixed:
            answers.fixed[symbol] = line()
        replace(symbol, *args, **others)

    def evaluate_expr(expression: sympy.Basic, *args: Any, **others: Any) -> sympy.Basic:
        with nullcontext() if binding else _suppress_guards(shapes):
            answer = evaluate(expression, *args, **others)
        if expression.free_symbols and not ShapeEnv._suppress_guards_tls():
            condition = _condition(expression, answer)
            if not answers.conditions.get(condition):
                if not _is_of_layout(expression, sys._getframe(1)):
                    answers.conditions[condition] = line()
        return answer

    shapes._set_replacement = set_replacement
    shapes.evaluate_expr = evaluate_expr
    return answers


def check_dynamic_batch(
    shapes: ShapeEnv,
    symbol: sympy.Symbol,
    traced: int,
    answers: RecordedGuards,
    trace_alike: Callable[[int], tuple[sympy.Symbol, RecordedGuards] | None],
) -> None:
    """ExportError, with the line, if the trace is not that of batches of other numbers of rows.

    traced: how many there were. trace_alike: traces another number of rows; None if the graph is
    another. PyTorch asks also where each answer leads to the same graph, as to check arguments.
    """
    for condition, line in answers.conditions.items():
        if isinstance(condition, sympy.Eq) and not _held(condition, symbol).all():
            raise _made_a_number(traced, line)
    courses = [(symbol, answers)]
    while True:
        covered = numpy.logical_or.reduce([_covered(*course) for course in courses])
        if covered.all():
            break
        other = _FEWEST + int(numpy.argmin(covered))
        course = None
        if other <= _MOST_TRACED and len(courses) < _MOST_COURSES:
            course = trace_alike(other)
        if course is None or not _covered(*course)[other - _FEWEST]:
            line = next(
                line
                for condition, line in answers.conditions.items()
                if not _held(condition, symbol)[other - _FEWEST]
            )
            raise ExportError(
                f"forward takes another course for {other} rows than for {traced}; a package has "
                f"one for batches of any size" + source.as_suffix(line)
            )
        courses.append(course)
    if shapes.replace(symbol) != symbol:
        raise _made_a_number(traced, answers.fixed.get(symbol, ""))


def _covered(symbol: sympy.Symbol, answers: RecordedGuards) -> numpy.ndarray:
    """A mask over numbers of rows: True where a trace with `answers` is valid."""
    held = [numpy.ones(_MOST + 1 - _FEWEST, bool)]
    held += [_held(each, symbol) for each in answers.conditions]
    return numpy.logical_and.reduce(held)


def _condition(expression: sympy.Basic, answer: Any) -> sympy.Basic:
    if isinstance(answer, (bool, sympy.logic.boolalg.BooleanAtom)):
        return expression if answer else sympy.Not(expression)
    return sympy.Eq(expression, answer, evaluate=False)


def _is_of_layout(asked: sympy.Basic, frame: FrameType | None) -> bool:
    """Also what PyTorch asks of sizes of one, which it may lay out in any way. Where it repeats
    them, plain PyTorch would fail for other sizes."""
    of_one = isinstance(asked, (sympy.Eq, sympy.Ne)) and sympy.S.One in asked.args
    straight = True
    while frame is not None and not source.is_model_code(frame.f_code.co_filename):
        code = frame.f_code
        if any(
            code.co_name == name and code.co_filename.endswith(file) for file, name in _OF_LAYOUT
        ):
            return True
        straight = straight and code.co_filename.endswith(_OF_NUMBERS)
        frame = frame.f_back
    return of_one and not (straight and frame is not None)


def _made_a_number(traced: int, line: str) -> ExportError:
    return ExportError(
        f"forward makes a Python number of the number of rows, which the package would have for "
        f"{traced} rows alone" + source.as_suffix(line)
    )


def _held(condition: sympy.Basic, symbol: sympy.Symbol) -> numpy.ndarray:
    """A mask over numbers of rows, from the fewest to the most: True where `condition` holds."""
    rows = numpy.arange(_FEWEST, _MOST + 1)
    if condition.free_symbols != {symbol}:
        return numpy.ones(rows.shape, bool)
    try:
        with numpy.errstate(all="ignore"):
            held = sympy.lambdify(symbol, condition, [_FUNCTIONS, "numpy"])(rows)
    except Exception:  # what sympy cannot write for NumPy raises whatever it likes
        held = numpy.ones(rows.shape, bool)
        for each in _candidates(condition, symbol):
            held[each - _FEWEST] = condition.subs(symbol, each) != sympy.false
    return numpy.broadcast_to(numpy.asarray(held, bool), rows.shape)


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
