"""Contexts in which the exporter runs modules: modes, precision, seeds and warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Suppresses PyTorch's warnings and log messages."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def default_modes() -> Iterator[None]:
    """Enables gradients and disables inference mode and autocast, whatever the caller enabled."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def without_validation() -> Iterator[None]:
    """Disables profiler labels and the default argument validation of distributions.

    Neither computes anything. Validation reads values, which a trace does not have. A distribution
    that is created with validate_args=True still validates.
    """
    with (
        mock.patch.object(torch.distributions.Distribution, "_validate_args", False),
        mock.patch.object(torch.profiler.record_function, "__enter__", lambda label: label),
        mock.patch.object(torch.profiler.record_function, "__exit__", lambda *_: None),
    ):
        yield


@contextmanager
def in_mode(
    module: nn.Module, training: bool, evaluated: Sequence[nn.Module] = ()
) -> Iterator[None]:
    """Sets training or evaluation mode, dense gradients, and kernels that can be traced.

    evaluated: submodules that are in evaluation mode in training, too.
    """
    modules = list(module.modules())
    before = {each: each.training for each in modules}
    sparse = [each for each in modules if getattr(each, "sparse", False) is True]
    module.train(training)
    for each in evaluated:
        each.eval()
    for each in sparse:
        each.sparse = False
    try:
        with _traceable_kernels():
            yield
    finally:
        for each in sparse:
            each.sparse = True
        for each, was in before.items():
            each.training = was


@contextmanager
def _traceable_kernels() -> Iterator[None]:
    # Fused encoder layers have no gradient and no shape rule.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def autocast(device: torch.device, precision: torch.dtype | None) -> Any:
    """Returns an autocast context, or a no-op for None, the model's own precision."""
    if precision is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=precision, cache_enabled=False)


def random_state(device: torch.device) -> torch.Tensor:
    """Returns the state of the device's default random generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds PyTorch's generators, and restores their state on exit."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        # torch.manual_seed() records a stack trace on every call if there is no GPU.
        torch.default_generator.manual_seed(seed)
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
