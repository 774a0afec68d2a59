"""AOTInductor packages, made for this machine: a minute of compiling each on a busy one."""

from __future__ import annotations

from pathlib import Path

import torch
from e2e.support import programs
from torch import Tensor, nn


class Mixed(nn.Module):
    """Takes numbers and words, returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 5)
        self.words = nn.Embedding(20, 10)

    def forward(self, x: Tensor, words: Tensor) -> dict[str, Tensor]:
        hidden = self.linear(x + self.words(words))
        return {"hidden": hidden, "softmax": hidden.softmax(-1)}


LARGEST = 32

MIXED_CONFIG = """
platform: "torch_aoti"
max_batch_size: 64
input [
  { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 10 ] },
  { name: "INPUT__1" data_type: TYPE_INT64 dims: [ ] }
]
output [
  { name: "softmax" data_type: TYPE_FP32 dims: [ 5 ] },
  { name: "hidden" data_type: TYPE_FP32 dims: [ 5 ] }
]
"""


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


def compile_mixed(
    path: Path, smallest: int = 2, largest: int = LARGEST, device: str = "cpu"
) -> None:
    """For batches of `smallest` to `largest` rows; of one size if they are equal."""
    example = [
        torch.zeros(smallest, 10, device=device),
        torch.zeros(smallest, dtype=torch.int64, device=device),
    ]
    sizes = None
    if largest > smallest:
        sizes = programs.any_batch(example, min=smallest, max=largest)
    programs.compile(path, mixed().to(device), example, sizes)
