"""The models of bench/formats.py, each in several formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from training_workloads import CLASSES, SGD, WORKLOADS, Workload

FORMATS = ("torchscript", "pair", "aot")
TRAINABLE = ("torchscript", "pair")


@dataclass(frozen=True)
class Line:
    """A workload, and the most that a step of the pair may take, as a multiple of TorchScript's."""

    workload: Workload
    most: float


class Encoder(nn.Module):
    """A transformer's layer on 16 tokens of 64 numbers, and a classifier of their mean."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=dropout, batch_first=True)
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.layer(input).mean(1))


def big() -> nn.Module:
    """100 MB of weights."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(24)))


def _encoder(name: str, title: str, dropout: float) -> Workload:
    return Workload(name, title, partial(Encoder, dropout), (16, 64), 64, SGD)


LINES = [
    Line(WORKLOADS["mlp"], 1.0),
    Line(WORKLOADS["convnet"], 1.0),
    Line(_encoder("encoder", "transformer layer, 16×64, batch 64", 0.0), 0.75),
    Line(_encoder("encoder_dropout", "transformer layer with dropout, batch 64", 0.1), 1.0),
]
SERVED = [line.workload for line in LINES[:3]]
BIG = Workload("big", "100 MB, 24 layers of 1024→1024", big, (1024,), 1, SGD)


def named(workload: Workload, format: str) -> Workload:
    """By the name that it has in a repository of several formats."""
    return replace(workload, name=f"{workload.name}_{format}")


def export(repository: Path, workloads: list[Workload], formats: tuple[str, ...]) -> None:
    for workload in workloads:
        for format in formats:
            named(workload, format).export(repository, format)
