"""Locations in the model's source code, for error messages."""

from __future__ import annotations

import os
import sysconfig
import textwrap
import traceback
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import FrameType

import numpy
import sympy
import torch

_STANDARD = sysconfig.get_paths()["stdlib"]
_LIBRARIES = [f"{Path(each.__file__).parent}{os.sep}" for each in (torch, sympy, numpy)]
_EXPORTERS = f"{Path(__file__).parents[1]}{os.sep}"
_NOT_THE_MODELS = (*_LIBRARIES, _EXPORTERS, "<")


def innermost_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """Returns the innermost location in the model's code, or an empty string.

    Skips frames of PyTorch, the standard library and the exporter.
    """
    inwards = list(frames)
    for is_wanted in (_is_file_of_the_model, is_model_code):
        for frame in reversed(inwards):
            if is_wanted(frame.filename):
                line = textwrap.shorten(frame.line or "", 120, placeholder=" ...")
                shown = f": {line}" if line else ""
                return f"{frame.filename}, line {frame.lineno}, in {frame.name}{shown}"
    return ""


def _is_file_of_the_model(filename: str) -> bool:
    return not _is_library(filename)


@cache
def _is_library(filename: str) -> bool:
    installed = "site-packages" in filename or "dist-packages" in filename
    standard = filename.startswith(_STANDARD) and not installed
    return standard or filename.startswith(_NOT_THE_MODELS)


@cache
def is_model_code(filename: str) -> bool:
    """Returns True for files of the model, and for code from a prompt or exec()."""
    generated = filename.startswith("<")
    pythons = filename.startswith(("<frozen", "<eval_with_key"))
    return not pythons if generated else not _is_library(filename)


def is_exporter_code(filename: str) -> bool:
    return filename.startswith(_EXPORTERS)


def current_line() -> str:
    return innermost_line(traceback.extract_stack())


def line_of_frame(frame: FrameType) -> str:
    """Returns the innermost model line on the stack that ends with `frame`."""
    return innermost_line(traceback.extract_stack(frame))


def model_frame(frame: FrameType | None, outermost: str) -> traceback.FrameSummary | None:
    """Returns the model's innermost frame between `frame` and the file `outermost`."""
    typed = None
    while frame is not None and frame.f_code.co_filename != outermost:
        filename = frame.f_code.co_filename
        if _is_file_of_the_model(filename):
            return _summary(frame)
        if typed is None and is_model_code(filename):
            typed = _summary(frame)
        frame = frame.f_back
    return typed


def _summary(frame: FrameType) -> traceback.FrameSummary:
    code = frame.f_code
    return traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name, lookup_line=False)


def line_of_error(error: BaseException) -> str:
    """Returns the innermost model line of an error and its causes."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for each in reversed(chain):
        if line := innermost_line(traceback.extract_tb(each.__traceback__)):
            return line
    return ""


def as_suffix(line: str) -> str:
    """Formats a line as the end of a message."""
    return f"\n  {line}" if line else ""
