"""Words of messages that come from errors and values of PyTorch and of models."""

from __future__ import annotations

import re
from typing import Any

import torch

# As in "<function relu at 0x7f0a91b4e660>".
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


def type_of(value: Any) -> str:
    """Returns the type of a value with its article, as in "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
