"""Errors that the model's own `except` hides.

A trace fails where forward looks at a tensor's values. A model that catches the error goes on with
a course that plain PyTorch does not take, and the package would keep it for all batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torch.utils.checkpoint import _StopRecomputationError

from braid.exporter import refusals, source

Place = tuple[type, CodeType, int]
Errors = dict[Place, Exception]

# PyTorch's own way out of a function that it runs again.
_NO_ERRORS = (StopIteration, _StopRecomputationError)


@contextmanager
def noted() -> Iterator[Errors]:
    """The errors that reach a line of the model, each where it first does, caught or not."""
    errors: Errors = {}
    before = sys.gettrace()
    sys.settrace(_tracer(errors))
    try:
        yield errors
    finally:
        sys.settrace(before)


def check(errors: Errors, known: Container[Place]) -> None:
    """ExportError, with the line, for one of a trace's that plain PyTorch did not raise there."""
    for place, error in errors.items():
        if place in known:
            continue
        raise refusals.of_caught(error) from error


def _tracer(errors: Errors) -> Callable[..., Any]:
    def in_model(frame: FrameType, event: str, raised: Any) -> Any:
        if event == "exception":
            _, error, _ = raised
            is_new = not any(error is each for each in errors.values())
            if isinstance(error, Exception) and not isinstance(error, _NO_ERRORS) and is_new:
                errors.setdefault((type(error), frame.f_code, frame.f_lineno), error)
        return in_model

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        if not source.is_models(frame.f_code.co_filename) or _imports(frame):
            return None
        frame.f_trace_lines = False
        return in_model

    return called


def _imports(frame: FrameType | None) -> bool:
    """Looking for a module goes by errors, for the first time alone."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
