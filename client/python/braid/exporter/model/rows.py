"""Batches of any size, made of the example's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

_Ran = TypeVar("_Ran")


def repeat_rows(example: torch.Tensor, count: int) -> torch.Tensor:
    """The example's rows over and over."""
    return example[torch.arange(count, device=example.device) % example.shape[0]]


def repeat_inputs(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    return {name: repeat_rows(example, count) for name, example in inputs.items()}


def vary_inputs(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Values that the examples do not have in these places, which find more than theirs do, but
    which nobody has said that the model takes."""
    return {
        name: vary(example, count, place) for place, (name, example) in enumerate(inputs.items())
    }


def run_varied(
    inputs: Mapping[str, torch.Tensor], count: int, run: Callable[[dict[str, torch.Tensor]], _Ran]
) -> tuple[dict[str, torch.Tensor], _Ran]:
    """What the module was given, and what `run` made of it: varied values, or the examples' own
    where it fails with the others."""
    given = vary_inputs(inputs, count)
    try:
        return given, run(given)
    except Exception:  # Whatever a model says to values that it does not take.
        given = repeat_inputs(inputs, count)
    return given, run(given)


def vary(example: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Numbers with decimals near the example's, others from among them, within their column: what
    is a category in one may be a price in the next, and probabilities end at one.

    A column is what one place of a row holds in the example's rows. Where all rows are alike, as
    where there is one, the whole example is taken for one column.
    """
    repeated = repeat_rows(example, count)
    if example.numel() == 0:
        return repeated
    generator = torch.Generator().manual_seed(1000 * seed + count)
    columns = example if (example != example[:1]).any() else example.reshape(-1, 1)
    if example.is_floating_point():
        return _move(repeated.double(), columns.double(), generator).to(example.dtype)
    # An index that is out of range costs the process its GPU.
    return _pick(repeated, example if example.is_cuda else columns, generator)


def _move(
    repeated: torch.Tensor, columns: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """By a tenth of the column's spread. What is not finite stays."""
    finite = columns.isfinite()
    low = columns.masked_fill(~finite, math.inf).amin(0)
    high = columns.masked_fill(~finite, -math.inf).amax(0)
    counted = finite.sum(0).clamp(min=1)
    mean = columns.masked_fill(~finite, 0.0).sum(0) / counted
    spread = ((columns - mean).masked_fill(~finite, 0.0).square().sum(0) / counted).sqrt()
    if not (low < high).any():
        spread = torch.ones_like(spread)
    noise = torch.randn(repeated.shape, generator=generator, dtype=torch.float64)
    moved = repeated + 0.1 * spread * noise.to(repeated.device)
    # Thrown back where the range ends: cut off there, many would be the same.
    inside = high - (high - (low + (moved - low).abs())).abs()
    return torch.where(repeated.isfinite(), torch.where(low < high, inside, moved), repeated)


def _pick(
    repeated: torch.Tensor, columns: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    size = repeated[0].numel()
    flat = columns.reshape(len(columns), -1).expand(-1, size)
    choice = torch.randint(len(columns), (len(repeated), size), generator=generator)
    places = torch.arange(size, device=flat.device)
    return flat[choice.to(flat.device), places].reshape(repeated.shape)
