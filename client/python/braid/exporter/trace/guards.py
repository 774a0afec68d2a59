"""Guards on the number of rows that a trace relies on.

A condition on the batch size, such as `if x.shape[0] > 40` or `y[:50]`, makes a trace follow one
branch. A package would follow this branch for all batches.
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

# The comparison with the module covers one row, which some modules reject, for example batch norm.
_MIN_ROWS = 2
_MAX_ROWS = 1 << 20
# Limits of additional traces: how many, and of how many rows.
_MAX_TRACES = 6
_MAX_TRACED_ROWS = 256

# Functions of PyTorch whose conditions select a kernel or a memory layout. The values do not depend
# on the answer.
_LAYOUT_FUNCTIONS = {
    (os.path.join("_subclasses", "fake_impls.py"), "conv"),
    (os.path.join("_prims_common", "__init__.py"), "check_contiguous_sizes_strides"),
    # Asks on GPUs whether cuDNN supports so many rows, even if cuDNN is disabled.
    (os.path.join("nn", "functional.py"), "batch_norm"),
}

# Files on the call path from an `if` in the model to the evaluation of its condition.
_NUMBER_FILES = (
    os.path.join("torch", "__init__.py"),
    os.path.join("fx", "experimental", "sym_node.py"),
    os.path.join("fx", "experimental", "symbolic_shapes.py"),
    os.path.join("fx", "experimental", "recording.py"),
    os.path.join("braid", "exporter", "trace", "guards.py"),
)

# NumPy equivalents of PyTorch's symbolic functions.
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
    """Conditions on symbolic sizes that a trace evaluated.

    conditions: those that hold for the traced batch, with the model's line or an empty string.
    fixed: symbols that were replaced by a value, with the model's line.
    """

    conditions: dict[sympy.Basic, str] = field(default_factory=dict)
    fixed: dict[sympy.Symbol, str] = field(default_factory=dict)


def record(shapes: ShapeEnv, outermost: str, binding: bool = True) -> RecordedGuards:
    """Starts recording the guards of `shapes`.

    outermost: file that calls the model.
    binding: True if guards specialize the number of rows.
    """
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
                if not _concerns_layout(expression, sys._getframe(1)):
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
    """Raises ExportError, with the line, if the trace is not valid for every number of rows.

    traced: number of rows of the trace.
    trace_alike: traces another number of rows; returns None if the graph differs. PyTorch also
        evaluates conditions that do not change the graph, for example to check arguments.
    """
    for condition, line in answers.conditions.items():
        if isinstance(condition, sympy.Eq) and not _mask(condition, symbol).all():
            raise _specialized(traced, line)
    traces = [(symbol, answers)]
    while True:
        covered = numpy.logical_or.reduce([_covered(*each) for each in traces])
        if covered.all():
            break
        other = _MIN_ROWS + int(numpy.argmin(covered))
        other_trace = None
        if other <= _MAX_TRACED_ROWS and len(traces) < _MAX_TRACES:
            other_trace = trace_alike(other)
        if other_trace is None or not _covered(*other_trace)[other - _MIN_ROWS]:
            line = next(
                line
                for condition, line in answers.conditions.items()
                if not _mask(condition, symbol)[other - _MIN_ROWS]
            )
            raise ExportError(
                f"forward() takes a different branch for {other} rows than for {traced} (expected "
                f"the same for all batch sizes)" + source.as_suffix(line)
            )
        traces.append(other_trace)
    if shapes.replace(symbol) != symbol:
        raise _specialized(traced, answers.fixed.get(symbol, ""))


def _covered(symbol: sympy.Symbol, answers: RecordedGuards) -> numpy.ndarray:
    """Returns a mask over numbers of rows: True where a trace with `answers` is valid."""
    mask = [numpy.ones(_MAX_ROWS + 1 - _MIN_ROWS, bool)]
    mask += [_mask(each, symbol) for each in answers.conditions]
    return numpy.logical_and.reduce(mask)


def _condition(expression: sympy.Basic, answer: Any) -> sympy.Basic:
    if isinstance(answer, (bool, sympy.logic.boolalg.BooleanAtom)):
        return expression if answer else sympy.Not(expression)
    return sympy.Eq(expression, answer, evaluate=False)


def _concerns_layout(asked: sympy.Basic, frame: FrameType | None) -> bool:
    """Returns True if a condition concerns only kernels or memory layout.

    Includes PyTorch's own checks for a size of 1, whose stride is arbitrary. If it broadcasts such
    a size, eager mode fails for other sizes.
    """
    of_size_one = isinstance(asked, (sympy.Eq, sympy.Ne)) and sympy.S.One in asked.args
    direct = True
    while frame is not None and not source.is_model_code(frame.f_code.co_filename):
        code = frame.f_code
        if any(
            code.co_name == name and code.co_filename.endswith(file)
            for file, name in _LAYOUT_FUNCTIONS
        ):
            return True
        direct = direct and code.co_filename.endswith(_NUMBER_FILES)
        frame = frame.f_back
    return of_size_one and not (direct and frame is not None)


def _specialized(traced: int, line: str) -> ExportError:
    return ExportError(
        f"forward() converts the number of rows to a Python number, which would fix it to "
        f"{traced}" + source.as_suffix(line)
    )


def _mask(condition: sympy.Basic, symbol: sympy.Symbol) -> numpy.ndarray:
    """Returns a mask over numbers of rows: True where `condition` holds."""
    rows = numpy.arange(_MIN_ROWS, _MAX_ROWS + 1)
    if condition.free_symbols != {symbol}:
        return numpy.ones(rows.shape, bool)
    try:
        with numpy.errstate(all="ignore"):
            mask = sympy.lambdify(symbol, condition, [_FUNCTIONS, "numpy"])(rows)
    except Exception:  # sympy may raise anything for functions that NumPy lacks.
        mask = numpy.ones(rows.shape, bool)
        for each in _candidates(condition, symbol):
            mask[each - _MIN_ROWS] = condition.subs(symbol, each) != sympy.false
    return numpy.broadcast_to(numpy.asarray(mask, bool), rows.shape)


def _candidates(condition: sympy.Basic, symbol: sympy.Symbol) -> Iterable[int]:
    """Returns numbers of rows near which the condition may change."""
    rows = {*range(_MIN_ROWS, 130), 1 << 8, 1000, 1 << 10, 1 << 12, 1 << 16, _MAX_ROWS}
    numbers = [int(each) for each in condition.atoms(sympy.Number) if each.is_finite]
    if isinstance(condition, sympy.core.relational.Relational):
        difference = sympy.expand(condition.lhs - condition.rhs)
        slope = difference.coeff(symbol, 1)
        if slope.is_Number and slope != 0:
            numbers.append(int(-difference.coeff(symbol, 0) / slope))
    rows |= {near for number in numbers for near in range(number - 1, number + 3)}
    return sorted(each for each in rows if _MIN_ROWS <= each <= _MAX_ROWS)
