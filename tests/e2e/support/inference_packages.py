"""An AOTInductor package or exported program of the model Mixed, and checks of what it serves.

Compiling a package takes up to a minute on a busy machine.
"""

from __future__ import annotations

from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import programs
from e2e.support.inference import assert_close, expected
from torch import Tensor, nn


class Mixed(nn.Module):
    """Takes floats and word indices, returns a dict."""

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
    """Compiles for batches of `smallest` to `largest` rows; for a fixed size if they are equal."""
    example = [
        torch.zeros(smallest, 10, device=device),
        torch.zeros(smallest, dtype=torch.int64, device=device),
    ]
    sizes = None
    if largest > smallest:
        sizes = programs.any_batch(example, min=smallest, max=largest)
    programs.compile(path, mixed().to(device), example, sizes)


def batch(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(rows)
    x = generator.standard_normal((rows, 10)).astype(np.float32)
    return x, generator.integers(0, 20, rows)


def assert_equals_pytorch(
    client: braid.Client, model: str, names: tuple[str, str], rows: int
) -> None:
    inputs = batch(rows)
    wanted = expected(mixed(), *inputs)
    outputs = client.infer(model, dict(zip(names, inputs)))
    assert outputs.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(outputs[name], value)


def assert_rejects_wrong_inputs(client: braid.Client, model: str, names: tuple[str, str]) -> None:
    x, words = batch(4)
    with pytest.raises(braid.InvalidArgument, match="10"):
        client.infer(model, {names[0]: x[:, :9].copy(), names[1]: words})
    with pytest.raises(braid.InvalidArgument, match="FP32"):
        client.infer(model, {names[0]: x.astype(np.float64), names[1]: words})


def assert_not_trainable(client: braid.Client, model: str, words: str) -> None:
    with pytest.raises(braid.FailedPrecondition, match=words):
        client.create_trainer(
            model,
            loss={"name": "mse", "output": "hidden"},
            optimizer={"name": "SGD", "lr": 0.1},
        )


def assert_unavailable(client: braid.Client, model: str, words: str) -> None:
    (status,) = [status for status in client.models() if status.name == model]
    assert status.state == "UNAVAILABLE"
    assert words in status.reason
