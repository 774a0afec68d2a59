"""Batches of any size, built from the rows of the example inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

_Ran = TypeVar("_Ran")


def repeat_rows(example: torch.Tensor, count: int) -> torch.Tensor:
    """Repeats the example's rows in order up to `count` rows."""
    return example[torch.arange(count, device=example.device) % example.shape[0]]


def repeat_inputs(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    return {name: repeat_rows(example, count) for name, example in inputs.items()}


def vary_inputs(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Returns batches with varied values, which find more errors than the examples' own.

    The model may reject them.
    """
    return {
        name: vary(example, count, place) for place, (name, example) in enumerate(inputs.items())
    }


def run_varied(
    inputs: Mapping[str, torch.Tensor], count: int, run: Callable[[dict[str, torch.Tensor]], _Ran]
) -> tuple[dict[str, torch.Tensor], _Ran]:
    """Runs on varied values, or on the examples' own if that fails.

    Returns the inputs used and the result.
    """
    given = vary_inputs(inputs, count)
    try:
        return given, run(given)
    except Exception:  # A model may raise anything for values that it rejects.
        given = repeat_inputs(inputs, count)
    return given, run(given)


def vary(example: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Returns rows with floats near the example's, and integers and booleans drawn from it.

    Values stay within the range of their column, the values at one position of all rows: one column
    may hold categories, the next one prices or probabilities. If all rows are equal, the whole
    example counts as one column.
    """
    repeated = repeat_rows(example, count)
    if example.numel() == 0:
        return repeated
    generator = torch.Generator().manual_seed(1000 * seed + count)
    columns = example if (example != example[:1]).any() else example.reshape(-1, 1)
    if example.is_floating_point():
        return _move(repeated.double(), columns.double(), generator).to(example.dtype)
    # An index out of range makes the GPU unusable for the process.
    return _pick(repeated, example if example.is_cuda else columns, generator)


def _move(
    repeated: torch.Tensor, columns: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """Adds noise of a tenth of the column's standard deviation. Keeps non-finite values."""
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
    # Reflects at the ends of the range: clamping would make many values equal.
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
