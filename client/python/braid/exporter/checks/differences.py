"""Largest values and differences of tensors, and changes of their last bits.

Work in chunks that fit into a processor's cache: on tensors of 100 M elements, temporary tensors of
the same size would cost more than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

CHUNK = 1 << 18  # in elements


def largest(tensor: torch.Tensor) -> float:
    """Returns the largest finite magnitude, or 0 if there is none."""
    most = 0.0
    for chunk in chunks(tensor):
        chunk = _exact(chunk)
        top = _magnitude(chunk)
        if not math.isfinite(top):
            finite = chunk[chunk.isfinite()]
            top = _magnitude(finite) if finite.numel() else 0.0
        most = max(most, top)
    return most


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the largest difference of two tensors with the same number of elements.

    NaN equals NaN, and infinities must match. Infinite for other non-finite values, 0 for empty
    tensors.
    """
    most = 0.0
    for mine, yours in zip(chunks(one), chunks(other), strict=True):
        gap = _magnitude(_exact(mine) - _exact(yours))
        if not math.isfinite(gap):
            mine, yours = mine.double(), yours.double()
            same = (mine == yours) | (mine.isnan() & yours.isnan())
            gaps = (mine - yours).abs().masked_fill(same, 0.0)
            gap = gaps.nan_to_num(nan=math.inf, posinf=math.inf).max().item()
        most = max(most, gap)
    return most


def _exact(chunk: torch.Tensor) -> torch.Tensor:
    """Converts numbers to a dtype that holds them exactly, and whose differences round slightly."""
    if chunk.dtype in (torch.float32, torch.float64):
        return chunk
    return chunk.float() if chunk.dtype in (torch.float16, torch.bfloat16) else chunk.double()


def _magnitude(chunk: torch.Tensor) -> float:
    """Returns the largest magnitude, NaN if there is a NaN."""
    low, high = chunk.aminmax()
    # The difference of two maxima would hide a NaN.
    return max(-low.item(), high.item()) if low == low else math.nan


def nudge(tensor: torch.Tensor, seed: int) -> None:
    """Changes random floating-point elements by one unit in the last place, up or down."""
    if not tensor.is_floating_point():
        return
    generator = torch.Generator().manual_seed(seed)
    count = min(tensor.numel(), CHUNK)
    steps = torch.randint(-1, 2, (count,), generator=generator).to(tensor.device, tensor.dtype)
    factors = 1 + torch.finfo(tensor.dtype).eps * steps
    for chunk in chunks(tensor):
        chunk.mul_(factors[: chunk.numel()])


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields non-empty parts of the flattened tensor: views, if it is contiguous."""
    if tensor.numel() > 0:
        yield from tensor.detach().reshape(-1).split(CHUNK)
