"""Publications on a GPU: a version uses the trainer's memory and keeps its values."""

from __future__ import annotations

from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, oracle
from e2e.support.inference import assert_close, expected
from e2e.support.metrics import scrape
from e2e.support.server import Server
from e2e.test_publish import module_of, train
from torch import Tensor, nn

from gpu.target import DEVICE, ONE, REPLICAS, gpu_only

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
MIB = 1 << 20
ALL_VERSIONS = """
max_batch_size: 256
input [ { name: "x" data_type: TYPE_FP64 dims: [ 1, 28, 28 ] } ]
output [ { name: "output__0" data_type: TYPE_FP64 dims: [ 10 ] } ]
version_policy { all { } }
"""


class Adapted(nn.Module):
    """256 MiB that are frozen, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8192, 8192, bias=False).requires_grad_(False)
        self.head = nn.Linear(8192, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x))


def allocated(server: Server) -> float:
    """Returns the bytes of all tensors on the GPU."""
    return scrape(server.metrics_url).value("braid_device_memory_bytes", owner="allocator")


def test_versions_keep_their_values_while_training_goes_on(tmp_path: Path, devices: str) -> None:
    folder = tmp_path / "models/convnet64"
    x = oracle.dataset("convnet64", 64)[0]
    models.export(folder, models.make("convnet64"), config=ALL_VERSIONS)
    with Server(tmp_path / "models", devices, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            trainer = client.create_trainer("convnet64", loss="cross_entropy", optimizer=SGD)
            wanted: dict[int, Tensor] = {}
            served: dict[int, np.ndarray] = {}

            def answer(version: int) -> np.ndarray:
                (output,) = client.infer("convnet64", {"x": x.numpy()}, version=version).values()
                return output

            for _ in range(5):
                train(trainer, steps=2)
                version = trainer.publish()
                wanted[version] = expected(module_of(trainer), x.numpy())
                served[version] = answer(version)
            train(trainer, steps=5)
            trainer.publish(wait_durable=True)
            for version, output in wanted.items():
                assert_close(served[version], output, rtol=1e-9, atol=1e-9)
                assert_close(answer(version), output, rtol=1e-9, atol=1e-9)


@gpu_only
@pytest.mark.parametrize("format", ["torchscript", "pair"])
def test_trainers_and_versions_share_frozen_memory(
    tmp_path: Path, devices: str, format: str
) -> None:
    x = torch.randn(2, 8192, device=DEVICE)
    folder = tmp_path / "models/adapted"
    if format == "pair":
        braid.export(Adapted().to(DEVICE), {"x": x}, folder, "pair", precisions=())
    else:
        models.export(folder, Adapted(), inputs=[torch.zeros(1, 8192)])
    batch = {"x": x.cpu().numpy()}, {"target": np.zeros(2, np.int64)}
    with Server(tmp_path / "models", devices, tmp_path / "run", data=False) as server:
        with braid.connect(server.address) as client:

            def run(name: str) -> None:
                trainer = client.create_trainer(
                    "adapted", name=name, loss="cross_entropy", optimizer=SGD
                )
                trainer.step(*batch)
                trainer.publish()
                trainer.step(*batch)

            run("first")
            before = allocated(server)
            # One copy for each worker.
            assert before < (REPLICAS[devices] + 1) * 256 * MIB
            for index in range(4):
                run(f"other{index}")
            assert allocated(server) - before < 256 * MIB


@gpu_only
def test_publishing_again_and_again_needs_no_more_memory(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096))
    models.export(tmp_path / "models/wide", module, inputs=[torch.zeros(1, 4096)])
    x = np.ones((4, 4096), np.float32)
    with Server(tmp_path / "models", ONE, tmp_path / "run", data=False) as server:
        with braid.connect(server.address) as client:
            trainer = client.create_trainer("wide", loss="mse", optimizer=SGD)
            sizes = []
            for _ in range(12):
                trainer.step({"input": x}, {"target": x})
                trainer.publish()
                client.infer("wide", {"input": x})
                sizes.append(allocated(server))
    assert max(sizes[4:]) <= sizes[3] + 8 * MIB, sizes
