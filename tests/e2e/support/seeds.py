"""The random numbers that a model draws in training: those of PyTorch's generator with the seed
that the server gives each chunk of each step, so dropout can be compared number by number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def _finalize(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _mix(seed: int, stream: int) -> int:
    """As server/base/random_seed.h."""
    return _finalize(_finalize(seed) ^ stream)


def forward_in_chunks(
    forward: Callable[..., Tensor], inputs: dict[str, Tensor], replicas: int, seed: int, step: int
) -> Tensor:
    """forward(**chunk) of each replica's chunk, concatenated.

    seed: the trainer's. step: the number of the operation.
    """
    names = list(inputs)
    outputs, row = [], 0
    with torch.random.fork_rng():
        for chunk in zip(*(torch.chunk(value, replicas) for value in inputs.values())):
            # Of the operation, the stage (the only one is 0) and the chunk's first row.
            torch.manual_seed(_mix(_mix(_mix(seed, step), 0), row))
            outputs.append(forward(**dict(zip(names, chunk))))
            row += len(chunk[0])
    return torch.cat(outputs)
