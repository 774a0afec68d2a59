"""Tracing of transformer encoder layers as PyTorch's fused evaluation operator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

_LAYER = "_transformer_encoder_layer_fwd"


@contextmanager
def fused() -> Iterator[None]:
    """Traces each encoder layer as the fused operator, with an unconditional shape rule.

    PyTorch before 2.13 has no shape rule for it. The patches hide the trace from the layers, so
    they call the fused operator as in eager mode, and disable dropping of padding, which depends on
    values.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    with torch.library._scoped_library("aten", "IMPL", "Meta") as library:
        library.impl(_LAYER, _shaped_like_the_source)
        with (
            mock.patch.object(torch.overrides, "has_torch_function", _never),
            mock.patch.object(torch, "_nested_tensor_from_mask_left_aligned", _never),
        ):
            torch.backends.mha.set_fastpath_enabled(True)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(before)


def _shaped_like_the_source(source: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(source, memory_format=torch.contiguous_format)


def _never(*_: Any) -> bool:
    return False
