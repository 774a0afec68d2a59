"""Outputs are served and trained under the names of the module or of the export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports, training
from e2e.support.server import Server
from torch import Tensor, nn
from torch.nn import functional

X = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
Y = torch.randn(7, 2, generator=torch.Generator().manual_seed(2))


class Scores(NamedTuple):
    logits: Tensor
    scores: Tensor


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)


class ReturnsNamedTuple(Base):
    def forward(self, x: Tensor) -> Scores:
        y = self.layer(x)
        return Scores(y, y.sigmoid())


class ReturnsTuple(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return y, y.sigmoid()


class ReturnsDict(Base):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.layer(x)
        return {"first": y, "second": y.sigmoid()}


NAMES = ["logits", "scores"]
MODELS = {
    "pair_fields": (ReturnsNamedTuple, "pair", None),
    "pair_given": (ReturnsTuple, "pair", NAMES),
    "script_fields": (ReturnsNamedTuple, "torchscript", None),
    "script_given": (ReturnsDict, "torchscript", NAMES),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    repository = tmp_path_factory.mktemp("output_names")
    for name, (module, format, names) in MODELS.items():
        precisions = [] if format == "pair" else None
        exports.export(
            module(), {"x": X}, repository / name, format, precisions=precisions,
            output_names=names,
        )  # fmt: skip
    staged = nn.Sequential(Base().layer, nn.Tanh())
    exports.export(
        staged, [X], repository / "staged", stages=[["0", "1"]], precisions=[],
        output_names=["scores"],
    )  # fmt: skip
    run = tmp_path_factory.mktemp("output_names_run")
    with Server(repository, "cpu*2", run, ("--cpu_threads=1",), data=False) as server:
        with braid.connect(server.address) as connected:
            yield connected


@pytest.mark.parametrize("name", MODELS)
def test_outputs_have_the_names(client: braid.Client, name: str) -> None:
    with torch.no_grad():
        logits = Base().layer(X)
    outputs = client.infer(name, {"x": X})
    assert sorted(outputs) == NAMES
    np.testing.assert_allclose(outputs["logits"], logits, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["scores"], logits.sigmoid(), rtol=1e-5, atol=1e-6)
    assert [each.name for each in client.model_metadata(name).outputs] == NAMES
    assert list(client.infer(name, {"x": X}, outputs=["scores"])) == ["scores"]


@pytest.mark.parametrize("name", MODELS)
def test_loss_names_an_output(client: braid.Client, name: str) -> None:
    module = Base()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    loss = {"name": "mse", "output": "scores"}
    with training.new_trainer(client, name, loss=loss, optimizer={"name": "SGD", "lr": 0.5}) as t:
        for _ in range(3):
            expected = functional.mse_loss(module.layer(X).sigmoid(), Y)
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
            assert t.step({"x": X}, {"target": Y}).loss == pytest.approx(expected.item(), rel=1e-5)
        assert sorted(t.forward({"x": X}).outputs) == NAMES


def test_stages_have_the_names_of_the_whole_model(client: braid.Client) -> None:
    stages = [{"path": "0", "devices": ["cpu:0"]}, {"path": "1", "devices": ["cpu:1"]}]
    loss = {"name": "mse", "output": "scores"}
    with training.new_trainer(client, "staged", loss=loss, optimizer="SGD", stages=stages) as t:
        expected = functional.mse_loss(Base().layer(X).tanh(), Y)
        assert t.step({"input": X}, {"target": Y}).loss == pytest.approx(expected.item(), rel=1e-5)
        assert list(t.forward({"input": X}).outputs) == ["scores"]
