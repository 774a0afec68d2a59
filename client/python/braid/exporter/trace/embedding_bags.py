"""Tracing of embedding bags whose rows have a variable length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional


@contextmanager
def with_offsets() -> Iterator[None]:
    """Passes the offsets of equally long bags as multiples of their length.

    PyTorch counts from 0 to the number of elements in steps of the length. The number of these
    offsets is then a quotient, which the trace cannot simplify to the number of rows.
    """
    with mock.patch.object(functional, "embedding_bag", _embedding_bag):
        yield


_original = functional.embedding_bag


def _embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    if input.dim() == 2 and offsets is None and not input.is_nested:
        rows, length = input.shape
        offsets = torch.arange(rows, dtype=input.dtype, device=input.device) * length
        include_last_offset = False
        input = input.reshape(-1)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.reshape(-1)
    return _original(
        input,
        weight,
        offsets,
        max_norm,
        norm_type,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )
