"""Models of bench/formats/formats.py, each in several formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from bench.training.workloads import CLASSES, SGD, WORKLOADS, Workload

FORMATS = ("torchscript", "pair", "aot")
TRAINABLE = ("torchscript", "pair")


@dataclass(frozen=True)
class Target:
    """A workload and the maximum duration of the pair's step, as a multiple of TorchScript's."""

    workload: Workload
    max_ratio: float


class Encoder(nn.Module):
    """A transformer layer for 16 tokens of size 64, and a classifier of their mean."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=dropout, batch_first=True)
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.layer(input).mean(1))


def big() -> nn.Module:
    """Returns a model with 100 MB of weights."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(24)))


def _encoder(name: str, title: str, dropout: float) -> Workload:
    return Workload(name, title, partial(Encoder, dropout), (16, 64), 64, SGD)


TARGETS = [
    Target(WORKLOADS["mlp"], 1.0),
    Target(WORKLOADS["convnet"], 1.0),
    Target(_encoder("encoder", "transformer layer, 16×64, batch 64", 0.0), 0.75),
    Target(_encoder("encoder_dropout", "transformer layer with dropout, batch 64", 0.1), 1.0),
]
SERVED = [target.workload for target in TARGETS[:3]]
BIG = Workload("big", "100 MB, 24 layers of 1024→1024", big, (1024,), 1, SGD)


def named(workload: Workload, format: str) -> Workload:
    """Returns the workload with its name in a repository of several formats."""
    return replace(workload, name=f"{workload.name}_{format}")


def export(repository: Path, workloads: list[Workload], formats: tuple[str, ...]) -> None:
    for workload in workloads:
        for format in formats:
            named(workload, format).export(repository, format)
