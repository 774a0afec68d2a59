"""Batches of any size, made of the example's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def take(example: torch.Tensor, count: int) -> torch.Tensor:
    """The example's rows over and over."""
    return example[torch.arange(count, device=example.device) % example.shape[0]]


def vary(example: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Floats near the example's; other values from among the example's own, which are known to be
    in range."""
    generator = torch.Generator().manual_seed(1000 * seed + count)
    repeated = take(example, count)
    if example.is_floating_point():
        noise = torch.randn(repeated.shape, generator=generator, dtype=torch.float64)
        spread = example.double().std(correction=0).item() or 1.0
        return (repeated.double() + 0.1 * spread * noise.to(example.device)).to(example.dtype)
    choice = torch.randint(example.numel(), (repeated.numel(),), generator=generator)
    return example.flatten()[choice.to(example.device)].reshape(repeated.shape)


def random_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """The same random numbers each time; what was drawn before goes on afterwards."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
