"""Compares models with torch.cond, exported as pairs, with PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports
from e2e.support.server import Server
from e2e.support.training import on
from torch import Tensor, nn
from torch.nn import functional

STEPS = 10


class Branches(nn.Module):
    """Runs one of two layers. Training changes which one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.cond(
            self.last.bias[0] > self.last.bias[1],
            lambda x: self.first(x).tanh(),
            lambda x: self.second(x).relu(),
            (x,),
        )
        return self.last(hidden)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("control_flow")
    example = torch.randn(3, 4, dtype=torch.float64)
    exports.export(Branches(), (example,), directory / "models/branches", "pair", precisions=())
    with Server(directory / "models", "cpu*2", directory / "run", ("--cpu_threads=1",)) as server:
        with braid.connect(server.address) as connected:
            yield connected


@pytest.mark.parametrize("replicas", [1, 2])
def test_branches_train_as_in_pytorch(client: braid.Client, replicas: int) -> None:
    generator = torch.Generator().manual_seed(1)
    module = Branches().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    taken = set()
    trainer = client.create_trainer(
        "branches",
        name=f"on-{replicas}",
        loss="cross_entropy",
        optimizer={"name": "SGD", "lr": 0.5},
        stages=on(replicas),
    )
    for step in range(STEPS):
        x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
        labels = torch.full((7,), step // 5)  # First class 0, then class 1.
        taken.add(bool(module.last.bias[0] > module.last.bias[1]))
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(x), labels)
        loss.backward()
        optimizer.step()
        result = trainer.step({"x": x}, {"target": labels})
        assert result.loss == pytest.approx(loss.item(), abs=1e-12)
    state = trainer.state_dict()
    assert taken == {True, False}
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(state[key], value, rtol=0, atol=1e-12)


def test_outputs_equal_pytorch(client: braid.Client) -> None:
    x = torch.randn(50, 4, dtype=torch.float64)
    with torch.no_grad():
        wanted = Branches().eval()(x)
    [actual] = client.infer("branches", {"x": x}).values()
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-12)
