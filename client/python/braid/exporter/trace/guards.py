"""Guards on symbolic sizes that a trace relies on.

A condition on the batch size or on a variable dim, such as `if x.shape[0] > 40` or `y.split(50)`,
makes a trace follow one branch. A package would follow this branch for all sizes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy
import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv, _suppress_guards

from braid._export import ExportError
from braid.exporter import source
from braid.exporter.model.sizes import BATCH, Sizes

# The comparison with the module covers a size of 1. Some modules reject one row, for example batch
# norm.
_MIN_SIZE = 2
_MAX_SIZE = 1 << 20
# Limits of additional traces: how many, and of which sizes.
_MAX_TRACES = 6
_MAX_TRACED_SIZE = 256
# Combinations of sizes on which conditions on several sizes are evaluated.
_COMBINATIONS = 1 << 10

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

# Files on the call path from an operator to its rule in Python.
_OPERATOR_FILES = (
    os.path.join("torch", "_ops.py"),
    os.path.join("torch", "_subclasses", "fake_tensor.py"),
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

    conditions: those that hold for the traced sizes, with the model's line or an empty string.
    internal: those that only operators evaluated, for example on the strides of their inputs. All
        branches of an operator compute the same, or it fails.
    fixed: symbols that were replaced by a value, with the model's line.
    """

    conditions: dict[sympy.Basic, str] = field(default_factory=dict)
    internal: set[sympy.Basic] = field(default_factory=set)
    fixed: dict[sympy.Symbol, str] = field(default_factory=dict)


def record(shapes: ShapeEnv, outermost: str, binding: bool = True) -> RecordedGuards:
    """Starts recording the guards of `shapes`.

    outermost: file that calls the model.
    binding: True if guards specialize sizes.
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
            frame = sys._getframe(1)
            if not answers.conditions.get(condition):
                if not _concerns_layout(expression, frame):
                    if condition not in answers.conditions and _is_internal(frame):
                        answers.internal.add(condition)
                    answers.conditions[condition] = line()
            if condition in answers.internal and not _is_internal(frame):
                answers.internal.remove(condition)
        return answer

    shapes._set_replacement = set_replacement
    shapes.evaluate_expr = evaluate_expr
    return answers


@dataclass(frozen=True)
class Answered:
    """Guards of one trace. symbols: its symbolic sizes by name."""

    symbols: Mapping[str, sympy.Symbol]
    guards: RecordedGuards

    def mask(self, condition: sympy.Basic, points: _Points) -> numpy.ndarray:
        """Returns a mask over points: True where `condition` holds."""
        names = {symbol: name for name, symbol in self.symbols.items()}
        free = sorted(condition.free_symbols, key=str)
        everywhere = numpy.ones(points.count, bool)
        if not free or not names.keys() >= set(free):
            return everywhere
        values = [points.values[names[symbol]] for symbol in free]
        try:
            with numpy.errstate(all="ignore"):
                mask = sympy.lambdify(free, condition, [_FUNCTIONS, "numpy"])(*values)
        except Exception:  # sympy may raise anything for functions that NumPy lacks.
            mask = everywhere
            for place in _candidates(condition, free, values):
                at = {symbol: int(each[place]) for symbol, each in zip(free, values)}
                mask[place] = condition.subs(at) != sympy.false
        return numpy.broadcast_to(numpy.asarray(mask, bool), everywhere.shape)

    def covered(self, points: _Points) -> numpy.ndarray:
        """Returns a mask over points: True where the trace is valid."""
        masks = [self.mask(each, points) for each in self.guards.conditions]
        return numpy.logical_and.reduce([numpy.ones(points.count, bool), *masks])


class _Points:
    """Combinations of sizes.

    For each symbol, all sizes of its domain with the traced sizes of the others; then combinations
    of small, large and random sizes.
    """

    def __init__(self, domains: Mapping[str, numpy.ndarray], traced: Sizes) -> None:
        columns: dict[str, list[numpy.ndarray]] = {name: [] for name in domains}
        self._ends: dict[str, int] = {}
        for name, domain in domains.items():
            for other, column in columns.items():
                same = numpy.full(len(domain), traced[other], numpy.int64)
                column.append(domain if other == name else same)
            self._ends[name] = sum(map(len, columns[name]))
        if len(domains) > 1:
            random = numpy.random.default_rng(0)
            # All are equal in a quarter of the combinations, as far as the domains allow.
            shared = numpy.exp(random.uniform(0, numpy.log(_MAX_SIZE), _COMBINATIONS)).astype(int)
            for name, domain in domains.items():
                few = domain[random.integers(0, min(len(domain), 32), _COMBINATIONS)]
                many = domain[random.integers(0, len(domain), _COMBINATIONS)]
                alike = shared.clip(domain[0], domain[-1])
                choice = random.integers(0, 2, _COMBINATIONS)
                drawn = numpy.where(choice == 0, few, many)
                drawn[: _COMBINATIONS // 4] = alike[: _COMBINATIONS // 4]
                columns[name].append(drawn)
        self.values = {name: numpy.concatenate(column) for name, column in columns.items()}
        self.count = len(next(iter(self.values.values())))

    def at(self, place: int) -> dict[str, int]:
        return {name: int(values[place]) for name, values in self.values.items()}

    def range_around(self, name: str, size: int, mask: numpy.ndarray) -> tuple[int, int | None]:
        """Returns the sizes of `name` around `size` for which `mask` is True without a gap."""
        end = self._ends[name]
        begin = max([each for each in self._ends.values() if each < end], default=0)
        domain, holds = self.values[name][begin:end], mask[begin:end]
        here = int(numpy.searchsorted(domain, size))
        below = numpy.flatnonzero(~holds[:here])
        above = numpy.flatnonzero(~holds[here:])
        first = int(domain[below[-1] + 1]) if len(below) else 1
        return first, int(domain[here + above[0] - 1]) if len(above) else None


def sizes_between(least: int, most: int | None) -> numpy.ndarray:
    """Returns the sizes within the bounds for which guards are checked."""
    first = max(_MIN_SIZE, least)
    last = _MAX_SIZE if most is None else min(most, _MAX_SIZE)
    return numpy.arange(first, max(first, last) + 1, dtype=numpy.int64)


def check_sizes(
    shapes: ShapeEnv,
    answered: Answered,
    traced: Sizes,
    domains: Mapping[str, numpy.ndarray],
    trace_alike: Callable[[Sizes, bool], Answered | None],
) -> None:
    """Raises ExportError, with the line, if the trace is not valid for all sizes.

    traced: sizes of the trace. domains: sizes that it must be valid for.
    trace_alike: traces other sizes; returns None if the graph differs. PyTorch also evaluates
        conditions that do not change the graph, for example to check arguments. If its second
        argument is True, a graph of other operators may return the same results.
    """
    points = _Points(domains, traced)
    recorded = answered.guards
    for condition, line in recorded.conditions.items():
        if isinstance(condition, sympy.Eq) and (
            condition not in recorded.internal or _fixes_symbol(condition)
        ):
            mask = answered.mask(condition, points)
            if not mask.all():
                raise _specialized(points.at(int(numpy.argmin(mask))), traced, condition, line)
    traces = [answered]
    while True:
        covered = numpy.logical_or.reduce([each.covered(points) for each in traces])
        if covered.all():
            break
        place = int(numpy.argmin(covered))
        others = points.at(place)
        other_trace = None
        failing = [
            condition
            for condition in recorded.conditions
            if not answered.mask(condition, points)[place]
        ]
        if max(others.values()) <= _MAX_TRACED_SIZE and len(traces) < _MAX_TRACES:
            other_trace = trace_alike(others, recorded.internal.issuperset(failing))
        if other_trace is None or not other_trace.covered(points)[place]:
            line = recorded.conditions[failing[0]]
            raise _other_branch(points, others, traced, covered, line)
        traces.append(other_trace)
    for name, symbol in answered.symbols.items():
        if shapes.replace(symbol) != symbol:
            raise _specialized({name: 0}, traced, None, recorded.fixed.get(symbol, ""))


def _other_branch(
    points: _Points, others: Sizes, traced: Sizes, covered: numpy.ndarray, line: str
) -> ExportError:
    changed = {name: size for name, size in others.items() if size != traced[name]}
    if list(changed) == [BATCH]:
        return ExportError(
            f"forward() takes a different branch for {changed[BATCH]} rows than for "
            f"{traced[BATCH]} (expected the same for all batch sizes)" + source.as_suffix(line)
        )
    hint = "expected the same for all sizes"
    if len(changed) == 1:
        (name,) = changed
        first, last = points.range_around(name, traced[name], covered)
        if last is None or last > first:
            hint += f": declare these bounds in `dynamic`: ('{name}', {first}, {last})"
    return ExportError(
        f"forward() treats {_text(changed)} differently from "
        f"{_text({name: traced[name] for name in changed})} ({hint})" + source.as_suffix(line)
    )


def _text(sizes: Sizes) -> str:
    return ", ".join(
        f"{size} rows" if name == BATCH else f"{name} = {size}" for name, size in sizes.items()
    )


def _condition(expression: sympy.Basic, answer: Any) -> sympy.Basic:
    if isinstance(answer, (bool, sympy.logic.boolalg.BooleanAtom)):
        return expression if answer else sympy.Not(expression)
    return sympy.Eq(expression, answer, evaluate=False)


def _concerns_layout(asked: sympy.Basic, frame: FrameType | None) -> bool:
    """Returns True if a condition concerns only kernels or memory layout.

    Includes PyTorch's own checks for a size of 1, whose stride is arbitrary. If it broadcasts such
    a size, eager mode fails for other sizes.
    """
    relation = isinstance(asked, sympy.core.relational.Relational)
    of_size_one = relation and sympy.S.One in asked.args
    direct = not _is_internal(frame)
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


def _is_internal(frame: FrameType | None) -> bool:
    """Returns True if an operator evaluated a condition, in C++ or in its rule in Python."""
    python, *numbers = _NUMBER_FILES
    while frame is not None and frame.f_code.co_filename.endswith(tuple(numbers)):
        frame = frame.f_back
    # Python code converts numbers by methods of torch.SymInt and torch.SymBool.
    if frame is None or not frame.f_code.co_filename.endswith(python):
        return True
    while frame is not None and not source.is_model_code(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith(_OPERATOR_FILES):
            return True
        frame = frame.f_back
    return False


def _fixes_symbol(condition: sympy.Eq) -> bool:
    one, other = condition.args
    return one.is_Symbol and other.is_Number


def _specialized(
    others: Sizes, traced: Sizes, condition: sympy.Basic | None, line: str
) -> ExportError:
    """others: sizes for which `condition` does not hold."""
    changed = [name for name, size in others.items() if size != traced[name]]
    if changed == [BATCH]:
        return ExportError(
            f"forward() converts the number of rows to a Python number, which would fix it to "
            f"{traced[BATCH]}" + source.as_suffix(line)
        )
    if len(changed) == 1:
        (name,) = changed
        return ExportError(
            f"forward() does not take all sizes of '{name}': it would be fixed to {traced[name]}, "
            f"or to sizes with the same remainder of a division (declare fewer sizes in `dynamic`, "
            f"for example a multiple of a torch.export.Dim, or leave the dim fixed)"
            + source.as_suffix(line)
        )
    return ExportError(
        f"forward() relates {' and '.join(map(repr, changed))}, which `dynamic` declares as "
        f"independent (give dims of the same size the same name)" + source.as_suffix(line)
    )


def _candidates(
    condition: sympy.Basic, free: list[sympy.Symbol], values: list[numpy.ndarray]
) -> Iterable[int]:
    """Returns points near which the condition may change."""
    if len(free) > 1:
        return range(max(0, len(values[0]) - 200), len(values[0]))
    (symbol,), (sizes,) = free, values
    near = {*range(_MIN_SIZE, 130), 1 << 8, 1000, 1 << 10, 1 << 12, 1 << 16, _MAX_SIZE}
    numbers = [int(each) for each in condition.atoms(sympy.Number) if each.is_finite]
    if isinstance(condition, sympy.core.relational.Relational):
        difference = sympy.expand(condition.lhs - condition.rhs)
        slope = difference.coeff(symbol, 1)
        if slope.is_Number and slope != 0:
            numbers.append(int(-difference.coeff(symbol, 0) / slope))
    near |= {each for number in numbers for each in range(number - 1, number + 3)}
    return numpy.flatnonzero(numpy.isin(sizes, [*near]))
