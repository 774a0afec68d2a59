"""Models of bench/inference for the server's model repository."""

from __future__ import annotations

from pathlib import Path

import torch
from e2e.support import models
from torch import Tensor, nn

from bench.common.export_mlp import Mlp

MAX_BATCH = 4096
_CONFIG = """
max_batch_size: {max_batch}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {columns} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {columns_out} ] }} ]
"""


class Identity(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Linears(nn.Module):
    """Takes about 10 ms per row: many layers, whose weights exceed the caches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(48)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Convolutions(nn.Module):
    """Takes about 40 ms per row of 32×32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 64, 3, padding=1)
        self.layers = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(52)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.first(x.view(-1, 1, 32, 32))).mean(1).flatten(1)


def export(repository: Path) -> Path:
    """Exports all models. Returns the path of 784→512→512→10."""
    torch.manual_seed(0)
    for name, module, config in (
        ("mlp", Mlp(), _CONFIG.format(max_batch=MAX_BATCH, columns=784, columns_out=10)),
        ("identity", Identity(), _CONFIG.format(max_batch=0, columns=-1, columns_out=-1)),
        # Batch size 1: the server's capacity does not grow with the length of its queue.
        ("linears", Linears(), _CONFIG.format(max_batch=1, columns=1024, columns_out=1024)),
        (
            "convolutions",
            Convolutions(),
            _CONFIG.format(max_batch=1, columns=1024, columns_out=1024),
        ),
    ):
        models.export(repository / name, module, config=config)
    return repository / "mlp/1/model.pt"
