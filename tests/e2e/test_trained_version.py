"""A trainer trains the version that it started from, even if its model serves another one."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models
from e2e.support.durable import DurableServer
from safetensors.torch import load_file
from torch import Tensor, nn

SGD = {"name": "SGD", "lr": 0.1}
CONFIG = """
max_batch_size: 64
version_policy: { all {} }
input [ { name: "x" data_type: TYPE_FP64 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP64 dims: [ 4 ] } ]
"""
X = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).double()
Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).double()


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class SameParameters(Trained):
    """Computes another function with the same parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x)) * 3


class OtherParameters(Trained):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x))


def make(kind: type[Trained]) -> Trained:
    torch.manual_seed(0)
    return kind()


def wanted(steps: int) -> tuple[list[float], Trained]:
    """Returns PyTorch's losses and the module after the steps."""
    module = make(Trained)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, module.eval()


def export(repository: Path, kind: type[Trained], version: int, format: str) -> None:
    if format == "torchscript":
        models.export(repository / "model", make(kind), config=CONFIG, version=version)
        return
    folder = repository.parent / f"{kind.__name__}-{version}"
    models.export_pair(folder, make(kind), {"x": X[:2]})
    (repository / "model").mkdir(parents=True, exist_ok=True)
    (folder / "1").rename(repository / "model" / str(version))
    (repository / "model/config.pbtxt").write_text(CONFIG)


def step(trainer: braid.Trainer, times: int = 2) -> list[float]:
    return [trainer.step({"x": X}, {"target": Y}).loss for _ in range(times)]


def create(client: braid.Client) -> braid.Trainer:
    return client.create_trainer(
        "model", version=1, name="t", loss="mse", optimizer=SGD, checkpoint_every=1
    )


@pytest.fixture
def server(tmp_path: Path, format: str) -> Iterator[DurableServer]:
    """A server of version 1 only; not started."""
    export(tmp_path / "models", Trained, 1, format)
    server = DurableServer(tmp_path / "models", "cpu*2", tmp_path / "server")
    yield server
    server.kill()


@pytest.mark.parametrize("other", [SameParameters, OtherParameters])
def test_training_keeps_its_version(server: DurableServer, format: str, other: type[Trained]) -> None:
    """A new version is added to the repository during training."""
    server.start()
    with braid.connect(server.address) as client:
        losses = step(create(client))
    export(server.repository, other, 2, format)
    server.start_again(signal.SIGTERM)
    with braid.connect(server.address) as client:
        assert max(client.model_metadata("model").versions) == 2
        trainer = client.trainer("t")
        assert trainer.info().base_version == 1
        losses += step(trainer)
    assert losses == pytest.approx(wanted(4)[0], abs=1e-12)


def test_downloads_use_the_trained_version(server: DurableServer, format: str) -> None:
    export(server.repository, SameParameters, 2, format)
    server.start()
    with braid.connect(server.address) as client:
        trainer = create(client)
        step(trainer)
        module = wanted(2)[1]
        with torch.no_grad():
            y = module(X).numpy()
        assert trainer.publish() == 3
        np.testing.assert_allclose(client.infer("model", {"x": X.numpy()})["y"], y, atol=1e-12)
        if format == "torchscript":
            assert_loads(downloaded(trainer), y)
            assert_loads(checkpointed(server, trainer), y)
    server.start_again(signal.SIGTERM)
    with braid.connect(server.address) as client:
        np.testing.assert_allclose(client.infer("model", {"x": X.numpy()})["y"], y, atol=1e-12)


def checkpointed(server: DurableServer, trainer: braid.Trainer) -> io.BytesIO:
    """Returns the model of a new checkpoint with its weights."""
    directory = server.checkpoints(trainer.name) / trainer.save_checkpoint().name
    module = torch.jit.load(directory / "base.pt")
    module.load_state_dict(load_file(directory / "weights.safetensors"))
    file = io.BytesIO()
    torch.jit.save(module, file)
    return io.BytesIO(file.getvalue())


def downloaded(trainer: braid.Trainer) -> io.BytesIO:
    file = io.BytesIO()
    trainer.download(file)
    return io.BytesIO(file.getvalue())


def assert_loads(file: io.BytesIO, y: np.ndarray) -> None:
    with torch.no_grad():
        np.testing.assert_allclose(torch.jit.load(file)(X).numpy(), y, atol=1e-12)
