"""Batches that need more memory than the GPU has."""

from __future__ import annotations

from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, programs
from e2e.support.server import Server
from torch import Tensor, nn

from gpu.target import DEVICE, ONE

CALL_SECONDS = 60


class Hungry(nn.Module):
    """Allocates 4 GiB per row and touches little of it."""

    def forward(self, x: Tensor) -> Tensor:
        memory = x.new_empty(x.shape[0], 1 << 30)[:, :1]
        return x + (memory != memory).to(x.dtype) * 0


HUNGRY_CONFIG = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
HUNGRY_PRODUCT_ROWS = 1 << 16
# The default max_batch_size would split the rows into batches that fit.
HUNGRY_PRODUCT_CONFIG = f"""
platform: "torch_aoti"
max_batch_size: {HUNGRY_PRODUCT_ROWS}
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ 16 ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
"""


class HungryProduct(nn.Module):
    """Allocates 4 MiB per row for a product, which compiled code does not fuse away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", torch.ones(16, 1 << 20))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.wide).amax(1, keepdim=True)


@pytest.mark.parametrize("format", ["torchscript", "exported"])
def test_batch_without_enough_memory_is_rejected(tmp_path: Path, format: str) -> None:
    folder = tmp_path / "models/hungry"
    if format == "torchscript":
        models.export(folder, Hungry())
    else:
        example = [torch.zeros(2, 1, device=DEVICE)]
        sizes = programs.any_batch(example)
        programs.save(folder / "1/model.pt2", Hungry().to(DEVICE), example, sizes)
    (folder / "config.pbtxt").write_text(HUNGRY_CONFIG)
    with Server(tmp_path / "models", ONE, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            with pytest.raises(braid.ResourceExhausted, match="memory"):
                client.infer("hungry", {"x": np.zeros((64, 1), np.float32)})
            assert client.is_ready()
            (output,) = client.infer("hungry", {"x": np.ones((1, 1), np.float32)}).values()
            assert output == 1


def test_batch_without_memory_for_compiled_code_is_rejected(tmp_path: Path) -> None:
    example = [torch.zeros(2, 16, device=DEVICE)]
    sizes = programs.any_batch(example, min=2, max=HUNGRY_PRODUCT_ROWS)
    folder = tmp_path / "models/hungry"
    programs.compile(folder / "1/model.pt2", HungryProduct().to(DEVICE), example, sizes)
    (folder / "config.pbtxt").write_text(HUNGRY_PRODUCT_CONFIG)
    with Server(tmp_path / "models", ONE, tmp_path / "run", data=False) as server:
        with braid.connect(server.address, timeout=CALL_SECONDS) as client:
            with pytest.raises(braid.ResourceExhausted, match="out of memory"):
                client.infer("hungry", {"input__0": np.zeros((HUNGRY_PRODUCT_ROWS, 16), np.float32)})
            assert client.is_ready()
            (output,) = client.infer("hungry", {"input__0": np.ones((2, 16), np.float32)}).values()
            assert (output == 16).all()
