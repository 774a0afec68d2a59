"""The models of bench/inference.py, for the server's model repository."""

from __future__ import annotations

from pathlib import Path

import torch
from e2e.support import models
from export_mlp import Mlp
from torch import Tensor, nn

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
    """Takes 10 ms or so for one row: many layers, whose weights no cache holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(48)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Convolutions(nn.Module):
    """Takes 40 ms or so for one row, which is read as 32×32 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 64, 3, padding=1)
        self.layers = nn.Sequential(*(nn.Conv2d(64, 64, 3, padding=1) for _ in range(52)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.first(x.view(-1, 1, 32, 32))).mean(1).flatten(1)


def export(repository: Path) -> Path:
    """Writes them all; returns the file of 784→512→512→10."""
    torch.manual_seed(0)
    for name, module, config in (
        ("mlp", Mlp(), _CONFIG.format(max_batch=MAX_BATCH, columns=784, columns_out=10)),
        ("identity", Identity(), _CONFIG.format(max_batch=0, columns=-1, columns_out=-1)),
        # Each request is a batch of its own: what the server can do does not grow with what waits.
        ("linears", Linears(), _CONFIG.format(max_batch=1, columns=1024, columns_out=1024)),
        ("convolutions", Convolutions(), _CONFIG.format(max_batch=1, columns=1024, columns_out=1024)),
    ):
        models.export(repository / name, module, config=config)
    return repository / "mlp/1/model.pt"
