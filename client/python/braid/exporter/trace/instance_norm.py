"""Tracing of instance norm as a group norm, which treats each row separately."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch


@contextmanager
def as_group_norm() -> Iterator[None]:
    """Traces instance norm as a group norm.

    PyTorch decomposes it into a batch norm over the channels of all rows. In a graph, the server
    could not distinguish it from a real batch norm and would synchronize it.
    """
    with mock.patch.object(torch, "instance_norm", _instance_norm):
        yield


_original = torch.instance_norm


def _instance_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    if not use_input_stats:
        return _original(
            input, weight, bias, running_mean, running_var, False, momentum, eps, cudnn_enabled
        )
    if running_mean is not None or running_var is not None:
        _update(input.detach(), running_mean, running_var, momentum)
    rows, channels, *sizes = input.shape
    return torch.native_group_norm(
        input.contiguous(), weight, bias, rows, channels, math.prod(sizes), channels, eps
    )[0]


def _update(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
) -> None:
    """Updates the running statistics by the mean over the rows."""
    variance, mean = torch.var_mean(input, dim=tuple(range(2, input.dim())), correction=1)
    for running, now in ((running_mean, mean), (running_var, variance)):
        if running is not None:
            running.copy_((1 - momentum) * running + momentum * now.mean(0))
