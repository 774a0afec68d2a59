"""PyTorch's modes: what the caller happens to have switched on is no part of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch


@contextmanager
def plain() -> Iterator[None]:
    """Gradients are recorded, and nothing is cast to another precision."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def bare() -> Iterator[None]:
    """Without what computes nothing: names for a profiler do nothing, and distributions do not look
    whether values can be theirs, unless one is told to. They do not, either, in a process that has
    compiled something."""
    with (
        mock.patch.object(torch.distributions.Distribution, "_validate_args", False),
        mock.patch.object(torch.profiler.record_function, "__enter__", lambda label: label),
        mock.patch.object(torch.profiler.record_function, "__exit__", lambda *_: None),
    ):
        yield
