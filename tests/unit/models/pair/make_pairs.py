"""Exports the models of pair_replica_test.cc into the folder that is its argument."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "client/python"))

import braid


class Heads(nn.Module):
    """Two outputs of one body; one of the biases is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 2, bias=False)
        self.left = nn.Linear(2, 1)
        self.right = nn.Linear(2, 1)
        self.left.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {"left": self.left(hidden), "right": self.right(hidden)}


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.second = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).tanh())


def main() -> None:
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(0)
    x = (torch.randn(4, 3, dtype=torch.float64),)
    braid.export(Heads().double(), x, folder / "heads", "pair", precisions=[])
    braid.export(Heads(), (x[0].float(),), folder / "single", "pair", precisions=["bfloat16"])
    braid.export(Stages().double(), x, folder / "stages", "pair", stages=[["first", "second"]])
    braid.export(Tied().double(), x, folder / "tied", "pair")


main()
