"""Pairs exported from modules on a GPU serve and train there as PyTorch does on the CPU, to the
tolerances of test_inference_gpu.py; what was exported for CPUs is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, oracle, training
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from e2e.test_publish import module_of, train
from torch import nn

from gpu.target import DEVICE, REPLICAS, TRAINED_ROWS, gpu_only

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
EXPORTED = ("mlp64", "smooth", "convnet64")


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for name in EXPORTED:
        example = oracle.dataset(name)[0][:4].to(DEVICE)
        braid.export(models.make(name).to(DEVICE), {"x": example}, folder / name, "pair")
    rows = torch.randn(4, 784)
    braid.export(Dropping().to(DEVICE), {"x": rows.to(DEVICE)}, folder / "dropping", "pair")
    braid.export(Dropping(), {"x": rows}, folder / "for_cpu", "pair", precisions=())
    return folder


@pytest.fixture(scope="module")
def client(
    repository: Path, devices: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[braid.Client]:
    with Server(repository, devices, tmp_path_factory.mktemp("run")) as server:
        with braid.connect(server.address) as client:
            yield client


@pytest.mark.parametrize("rows", [1, 32, 1000])
@pytest.mark.parametrize(
    ("model", "tolerance"), [("mlp64", 1e-9), ("smooth", 1e-4), ("convnet64", 1e-9)]
)
def test_outputs_equal_pytorch(
    client: braid.Client, model: str, tolerance: float, rows: int
) -> None:
    x = oracle.dataset(model)[0][:rows].numpy()
    (output,) = client.infer(model, {"x": x}).values()
    assert_close(output, expected(models.make(model), x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rows", TRAINED_ROWS)
@pytest.mark.parametrize(
    ("model", "steps", "tolerance"),
    [("mlp64", 100, 1e-9), ("smooth", 100, 1e-3), ("convnet64", 20, 1e-9)],
)
def test_training_equals_pytorch(
    client: braid.Client, devices: str, model: str, steps: int, tolerance: float, rows: int
) -> None:
    loss = "cross_entropy"
    batches = oracle.batches_of(model, loss, rows, steps)
    actual = training.train(client, model, batches, SGD, loss)
    # Only batch norm depends on how the batch is cut.
    replicas = REPLICAS[devices] if model.startswith("convnet") else 1
    wanted = oracle.reference(model, tuple(SGD.items()), loss, rows, steps, replicas)
    oracle.assert_equal_runs(actual, wanted, tolerance)


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float16", marks=gpu_only)])
def test_mixed_precision_learns(client: braid.Client, precision: str) -> None:
    x, target = (each.numpy() for each in oracle.dataset("smooth", 256))
    trainer = client.create_trainer(
        "smooth", loss="cross_entropy", optimizer=SGD, precision=precision
    )
    losses = [trainer.step({"x": x}, {"target": target}).loss for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    trainer.delete()


def test_dropout_is_bit_reproducible_with_a_seed(client: braid.Client) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((97, 784)).astype(np.float32)
    target = random.integers(10, size=97)

    def run(seed: int) -> tuple[list[float], dict[str, np.ndarray]]:
        trainer = client.create_trainer(
            "dropping", loss="cross_entropy", optimizer=SGD, seed=seed
        )
        losses = [trainer.step({"x": x}, {"target": target}).loss for _ in range(10)]
        state = trainer.state_dict()
        trainer.delete()
        return losses, state

    first, second, other = run(7), run(7), run(8)
    assert first[0] == second[0] != other[0]
    for name, value in first[1].items():
        assert value.tobytes() == second[1][name].tobytes(), name


def test_published_weights_are_served(client: braid.Client) -> None:
    x = oracle.dataset("convnet64", 300)[0].numpy()
    trainer = client.create_trainer("convnet64", loss="cross_entropy", optimizer=SGD)
    train(trainer)
    version = trainer.publish()
    (output,) = client.infer("convnet64", {"x": x}, version=version).values()
    assert_close(output, expected(module_of(trainer), x), rtol=1e-9, atol=1e-9)
    trainer.delete()


@gpu_only
def test_cpu_pair_is_rejected(client: braid.Client) -> None:
    (status,) = [status for status in client.models() if status.name == "for_cpu"]
    assert "was exported for the CPU and cannot run on cuda:0" in status.reason


@gpu_only
def test_gpu_pair_is_rejected_on_a_cpu(repository: Path, tmp_path: Path) -> None:
    with Server(repository, "cpu*1", tmp_path / "run", data=False) as server:
        with braid.connect(server.address) as client:
            status = {each.name: each for each in client.models()}
    assert status["for_cpu"].state == "READY"
    assert "was exported for GPUs and cannot run on cpu" in status["mlp64"].reason
