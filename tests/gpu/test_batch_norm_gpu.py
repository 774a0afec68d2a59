"""Batch norm whose statistics are those of the whole batch, on a GPU."""

from __future__ import annotations

from pathlib import Path

import braid
import pytest
import torch
from e2e.support import models, training, training_models
from e2e.support.server import Server
from e2e.support.training import MANY_STEPS, classes, rows

from gpu.target import DEVICE

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}


@pytest.mark.parametrize("format", ["torchscript", "pair"])
def test_synchronized_batch_norm_equals_whole_batch_training(
    tmp_path: Path, devices: str, format: str
) -> None:
    folder, module = tmp_path / "models/normed", training_models.make("normed")
    if format == "torchscript":
        models.export(folder, module, inputs=[torch.zeros(2, 6, dtype=torch.float64)])
    else:
        braid.export(module.to(DEVICE), {"x": rows(4, 6).to(DEVICE)}, folder, "pair")
    batches = [
        ({"x": 2 * rows(11, 6, seed=s) + s}, {"target": classes(11, of=4, seed=s)})
        for s in range(5)
    ]
    with Server(tmp_path / "models", devices, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            training.compare(
                client,
                "normed",
                batches,
                SGD,
                "cross_entropy",
                tolerance=MANY_STEPS,
                stages=None,
                sync_batch_norm=True,
            )
