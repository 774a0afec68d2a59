"""Convolutions that are compiled for any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.fx.experimental.symbolic_shapes import _suppress_guards

# What PyTorch asks to know how a convolution's result will lie in memory: which kernel it would
# take, and that kernel's layout.
_QUESTIONS = ("_select_conv_backend", "_conv_determine_backend_memory_format")


@contextmanager
def for_any_number_of_rows() -> Iterator[None]:
    """For a compilation.

    That the answers hold for 2 to 15 rows, say, would bound the package; but the kernels agree on
    the layout, whatever the number of rows.
    """
    with ExitStack() as patches:
        for name in _QUESTIONS:
            ask = _without_guards(getattr(torch._C, name))
            patches.enter_context(mock.patch.object(torch._C, name, ask))
        yield


def _without_guards(ask: Callable[..., Any]) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        input = kwargs["input"] if "input" in kwargs else args[0]
        with _suppress_guards(input.fake_mode.shape_env):
            return ask(*args, **kwargs)

    return answer
