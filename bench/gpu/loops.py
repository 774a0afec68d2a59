"""Bare PyTorch loops of bench/gpu: inference and training, eager or compiled, on one device."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bench.gpu.models import PRECISIONS, InPrecision, Model

Call = Callable[[], object]


def set_tf32(allowed: bool) -> None:
    """Applies the setting of the server's `--tf32` to this process."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _compile(module: nn.Module, device: torch.device) -> nn.Module:
    """Compiles for fixed shapes, which is fastest, after clearing the compile cache. On a CPU (dry
    runs) only traces, because compiling takes minutes there."""
    torch.compiler.reset()
    backend = "inductor" if device.type == "cuda" else "eager"
    return torch.compile(module, dynamic=False, backend=backend)


def inference(
    model: Model, precision: str, rows: np.ndarray, device: torch.device, compiled: bool
) -> Call:
    """Returns a function that runs one batch: host to device, forward, device to host."""
    module = InPrecision(model.module(), PRECISIONS[precision]).eval().to(device)
    if compiled:
        module = _compile(module, device)
    batch = torch.from_numpy(rows)
    if device.type == "cuda":
        batch = batch.pin_memory()

    def run() -> torch.Tensor:
        set_tf32(precision == "tf32")
        with torch.inference_mode():
            return module(batch.to(device, non_blocking=True)).cpu()

    return run


class Training:
    """Training steps under bfloat16 autocast. Each step reads its loss, which each reply of Braid
    also has."""

    def __init__(
        self, model: Model, optimizer: dict, rows: int, device: torch.device, compiled: bool
    ) -> None:
        self._device = device
        self._module = model.module().train().to(device)
        self._forward = _compile(self._module, device) if compiled else self._module
        options = {name: value for name, value in optimizer.items() if name != "name"}
        make = getattr(torch.optim, optimizer["name"])
        self._optimizer = make(self._module.parameters(), **options, fused=True)
        self._batches = itertools.cycle(
            [
                (torch.from_numpy(x), torch.from_numpy(y))
                for x, y in training_batches(model, rows)
            ]
        )

    def run(self, steps: int) -> float:
        """Returns the seconds that `steps` steps take."""
        start = time.perf_counter()
        for _ in range(steps):
            self._step()
        return time.perf_counter() - start

    def save_and_load(self, path: Path) -> float:
        """Returns the seconds to write the weights durably, and to load them into a module that is
        on the device already."""
        start = time.perf_counter()
        with path.open("wb") as file:
            torch.save(self._module.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())  # As durable as a published version.
        self._module.load_state_dict(torch.load(path, map_location=self._device))
        synchronize(self._device)
        return time.perf_counter() - start

    def _step(self) -> None:
        x, target = (each.to(self._device) for each in next(self._batches))
        self._optimizer.zero_grad()
        with torch.autocast(self._device.type, torch.bfloat16):
            outputs = self._forward(x)
        loss = functional.cross_entropy(outputs.float(), target)
        loss.backward()
        self._optimizer.step()
        loss.item()


def training_batches(model: Model, rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(model.rows(rows, seed), model.targets(rows, seed)) for seed in range(4)]


@contextmanager
def chrome_trace(path: Path, device: torch.device) -> Iterator[None]:
    """Writes a trace of the code in the context, like the server's `--profile`."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        yield
    profile.export_chrome_trace(str(path))
