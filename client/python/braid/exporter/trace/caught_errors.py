"""Detection of tracing errors that the model's own `except` clauses hide.

A trace fails if forward reads a tensor's values. A model that catches the error continues on a
branch that it does not take in eager mode, and the package would keep this branch for all batches.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from torch.utils.checkpoint import _StopRecomputationError

from braid._export import ExportError
from braid.exporter import export_errors, source

# Line of the model, without the error type: a trace may raise another type at the same line.
Place = tuple[CodeType, int]

# Exceptions used for control flow. PyTorch stops recomputation with the second one.
_NO_ERRORS = (StopIteration, _StopRecomputationError)


@dataclass(frozen=True)
class RaisedError:
    """Error, and the model's line that it reached first.

    of_cache: True if an `lru_cache` failed to hash a symbolic number of rows. Callers then compute
        the result instead.
    """

    error: Exception
    place: Place
    of_cache: bool


@contextmanager
def recorded() -> Iterator[list[RaisedError]]:
    """Records the errors that reach a line of the model, caught or not."""
    errors: list[RaisedError] = []
    before = sys.gettrace()
    sys.settrace(_tracer(errors))
    try:
        yield errors
    finally:
        sys.settrace(before)


def check_eager(errors: Iterable[RaisedError]) -> None:
    """Raises the first ExportError that the model caught in an eager run."""
    for each in errors:
        if isinstance(each.error, ExportError):
            raise each.error


def check_traced(errors: Iterable[RaisedError], known: Container[Place]) -> None:
    """Raises ExportError for the first error of a trace that eager mode did not raise at its line.

    known: lines at which eager mode raised errors.
    """
    for each in errors:
        # Eager mode has the values. Its error at this line had another cause.
        if export_errors.depends_on_values(each.error):
            raise export_errors.caught_error(each.error) from each.error
        if each.place not in known and not each.of_cache:
            raise export_errors.caught_error(each.error) from each.error


def _is_of_cache(error: Exception, frame: FrameType) -> bool:
    return (
        isinstance(error, TypeError)
        and str(error).startswith("unhashable type: non-nested Sym")
        and any(hasattr(each, "cache_info") for each in _named_at(frame))
    )


def _named_at(frame: FrameType) -> Iterator[Any]:
    """Yields the objects that names in the current line of `frame` refer to."""
    known = {**frame.f_globals, **frame.f_locals}
    value = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.positions is None or instruction.positions.lineno != frame.f_lineno:
            continue
        if instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            value = inspect.getattr_static(value, instruction.argval, None)
        elif isinstance(instruction.argval, str):
            value = known.get(instruction.argval)
        yield value


def _tracer(errors: list[RaisedError]) -> Callable[..., Any]:
    met: dict[int, Exception] = {}

    def in_model(frame: FrameType, event: str, raised: Any) -> Any:
        if event == "exception":
            _, error, _ = raised
            if isinstance(error, Exception) and not isinstance(error, _NO_ERRORS):
                if id(error) not in met:
                    met[id(error)] = error
                    place = (frame.f_code, frame.f_lineno)
                    errors.append(RaisedError(error, place, _is_of_cache(error, frame)))
        return in_model

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        if not source.is_model_code(frame.f_code.co_filename) or _imports(frame):
            return None
        frame.f_trace_lines = False
        return in_model

    return called


def _imports(frame: FrameType | None) -> bool:
    """Returns True during an import, which raises and catches errors the first time."""
    while frame is not None and not source.is_exporter_code(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
