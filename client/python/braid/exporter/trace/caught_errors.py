"""Errors that the model's own `except` hides.

A trace fails where forward looks at a tensor's values. A model that catches the error goes on with
a course that plain PyTorch does not take, and the package would keep it for all batches.
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

# A line of the model, whatever is raised there: a trace may say otherwise what is wrong.
Place = tuple[CodeType, int]

# PyTorch's own way out of a function that it runs again.
_NO_ERRORS = (StopIteration, _StopRecomputationError)


@dataclass(frozen=True)
class RaisedError:
    """An error, and where it first reached the model.

    of_cache: it is that a traced number of rows is looked up nowhere, and who looked it up is an
        `lru_cache`: who keeps results computes them then.
    """

    error: Exception
    place: Place
    of_cache: bool


@contextmanager
def recorded() -> Iterator[list[RaisedError]]:
    """The errors that reach a line of the model, caught there or not."""
    errors: list[RaisedError] = []
    before = sys.gettrace()
    sys.settrace(_tracer(errors))
    try:
        yield errors
    finally:
        sys.settrace(before)


def check_eager(errors: Iterable[RaisedError]) -> None:
    """The first of the exporter's own errors in a plain run, which the model has caught."""
    for each in errors:
        if isinstance(each.error, ExportError):
            raise each.error


def check_traced(errors: Iterable[RaisedError], known: Container[Place]) -> None:
    """ExportError, with the line, for one of a trace's that plain PyTorch did not raise there."""
    for each in errors:
        # Plain PyTorch has the values, whatever else it does not like about the line.
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
    """What the names in the line that is being run stand for."""
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
    """Looking for a module goes by errors, for the first time alone."""
    while frame is not None and not source.is_exporter_code(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
