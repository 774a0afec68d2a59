"""Workloads of bench/training: models, batches and targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import braid
import numpy as np
import torch
from torch import nn

CLASSES = 10
# Number of different batches, which are used in rotation.
BATCHES = 8


@dataclass(frozen=True)
class Targets:
    """Minimum rates of Braid as multiples of other loops' rates, and the maximum fraction of a step
    outside forward, loss and backward. None for no target."""

    plain: float | None = None
    ddp: float | None = None
    one_replica: float | None = None
    overhead: float | None = None


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    make: Callable[[], nn.Module]
    row: tuple[int, ...]
    rows: int
    optimizer: dict
    targets: Targets = Targets()

    def module(self) -> nn.Module:
        """Makes the module, with the same weights every time."""
        torch.manual_seed(0)
        return self.make()

    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns inputs and class indices, the same every time."""
        random = np.random.default_rng(0)
        return [
            (
                random.standard_normal((self.rows, *self.row), dtype=np.float32),
                random.integers(CLASSES, size=self.rows),
            )
            for _ in range(BATCHES)
        ]

    def export(self, repository: Path, format: str = "torchscript") -> None:
        example = {"input": torch.randn(4, *self.row)}
        options = {"precisions": ()} if format == "pair" else {}
        braid.export(self.module(), example, repository / self.name, format, **options)


def convnet() -> nn.Module:
    """Takes about 50 ms per step of 64 images on one thread, most of it in convolutions."""

    def block(before: int, after: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(after), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32, stride=2),
        *block(32, 64, stride=1),
        *block(64, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )


SGD = {"name": "SGD", "lr": 0.01, "momentum": 0.9}
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "convnet",
            "batch-norm convnet, 3×32×32, batch 64",
            convnet,
            (3, 32, 32),
            64,
            SGD,
            Targets(plain=1.1, one_replica=1.85, ddp=1.0, overhead=0.08),
        ),
        Workload(
            "mlp",
            "784→512→512→10, batch 256",
            mlp,
            (784,),
            256,
            SGD,
            Targets(plain=0.9, ddp=1.2),
        ),
    )
}
