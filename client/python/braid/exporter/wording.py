"""Messages made from errors and values of PyTorch and of models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from braid._export import ExportError

# Matches the address in "<function relu at 0x7f0a91b4e660>".
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=[^<]*>)")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, without addresses of objects."""
    lines = str(error).strip().splitlines()
    # TorchScript's interpreter begins with a traceback.
    line = lines[-1 if isinstance(error, torch.jit.Error) else 0] if lines else ""
    return _ADDRESS.sub("", line)


def named(error: BaseException) -> str:
    """Returns an error's type and the first line of its message, as in "KeyError: 'x'"."""
    if isinstance(error, torch.jit.Error):
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def of_data(error: BaseException) -> str:
    """Returns what is wrong with data that could not be read, in one sentence."""
    while error.__cause__ is not None and not isinstance(error, ExportError):
        error = error.__cause__
    if isinstance(error, ExportError):
        return str(error)
    sentence = first_line(error).partition(". ")[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({sentence})"
    if isinstance(error, KeyError):
        path = error.args[0] if isinstance(error.args[0], tuple) else error.args
        return f"lacks '{'/'.join(map(str, path))}'"
    if isinstance(error, (TypeError, AttributeError)):
        return f"a value has the wrong type ({sentence})"
    return sentence or type(error).__name__


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Raises ExportError, which begins with `what`, for any error that damaged data causes."""
    try:
        yield
    except Exception as error:
        raise ExportError(f"{what}: {of_data(error)}") from error


def type_of(value: Any) -> str:
    """Returns the type of a value with its article, as in "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
