"""Stages in mixed precision receive the dtype that autocast computes in the previous stage."""

from __future__ import annotations

from collections.abc import Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports
from e2e.support.server import Server
from e2e.support.training import classes, new_trainer, rows
from torch import Tensor, nn
from torch.nn import functional

STEPS = 5
ROWS = 12
STAGES = [{"path": "first", "devices": ["cpu:0"]}, {"path": "second", "devices": ["cpu:1"]}]
SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}


class Halves(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


MODELS = {
    "tanh": lambda: Halves(nn.Sequential(nn.Linear(10, 8), nn.Tanh()), nn.Linear(8, 5)),
    "norm": lambda: Halves(
        nn.Linear(10, 8), nn.Sequential(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5))
    ),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(5)
    return MODELS[name]()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("stage_precisions")
    for name in MODELS:
        path, example = directory / "models" / name, (torch.randn(ROWS, 10),)
        options = {"stages": [["first", "second"]], "precisions": ["bfloat16", "float16"]}
        exports.export(make(name), example, path, "pair", **options)
        exports.export(make(name), example, path.with_name(f"{name}_script"), "torchscript")
    with Server(directory / "models", "cpu*2", directory / "server") as server:
        with braid.connect(server.address) as client:
            yield client


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(rows(ROWS, 10, seed=s).float(), classes(ROWS, seed=s)) for s in range(STEPS)]


def train(client: braid.Client, model: str, precision: str) -> tuple[list[float], dict]:
    options = {"loss": "cross_entropy", "optimizer": SGD, "precision": precision}
    with new_trainer(client, model, stages=STAGES, **options) as trainer:
        losses = [trainer.step({"x": x}, {"target": target}).loss for x, target in batches()]
        output = trainer.forward({"x": batches()[0][0]}, mode="eval").outputs["output__0"]
        return losses, trainer.state_dict() | {"output": output}


def reference(name: str, precision: str) -> tuple[list[float], dict]:
    module = make(name).train()
    stepper = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    scaling = torch.amp.GradScaler("cpu", enabled=precision == "float16")
    autocast = torch.autocast("cpu", dtype=getattr(torch, precision))
    losses = []
    for x, target in batches():
        with autocast:
            output = module(x)
        loss = functional.cross_entropy(output.float(), target)
        stepper.zero_grad()
        scaling.scale(loss).backward()
        scaling.step(stepper)
        scaling.update()
        losses.append(loss.item())
    with torch.no_grad(), autocast:
        output = module.eval()(batches()[0][0]).float()
    return losses, {key: value.numpy() for key, value in module.state_dict().items()} | {
        "output": output.numpy()
    }


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("model", MODELS)
def test_stages_equal_autocast(client: braid.Client, model: str, precision: str) -> None:
    """Equal to PyTorch's and TorchScript's results, with the same rounding."""
    losses, state = reference(model, precision)
    for format in (model, f"{model}_script"):
        got_losses, got_state = train(client, format, precision)
        assert got_losses == pytest.approx(losses, rel=1e-3), format
        for name, value in state.items():
            np.testing.assert_allclose(got_state[name], value, rtol=0, atol=2e-3, err_msg=name)
