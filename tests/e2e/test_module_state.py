"""Models and loss modules with state that Braid does not track are served but not trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, training
from e2e.support.server import Server
from torch import Tensor, nn

SGD = {"name": "SGD", "lr": 0.1}


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))
        self.register_buffer("kept", torch.zeros(()))
        self.calls: int = 0
        self.mean = torch.zeros(4)
        self.history: list[Tensor] = [torch.zeros(4)]
        self.named: dict[str, Tensor] = {"last": torch.zeros(4)}


class CountsInANumber(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x @ self.weight


class AssignsATensor(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.mean = self.mean + x.mean(0)
        return x @ self.weight


class CountsWhileItEvaluates(Base):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.calls += 1
        return x @ self.weight


class DecaysItsWeight(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        with torch.no_grad():
            self.weight.mul_(0.9)
        return y


class DecaysARow(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        with torch.no_grad():
            self.weight[0].view(-1).mul_(0.9)
        return y


class Remembers(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.history.append(x[0])
        return x @ self.weight


class RemembersByName(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.named["last"] = x[0]
        return x @ self.weight


class CountsBeside(Base):
    def count(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x

    def forward(self, x: Tensor) -> Tensor:
        counted = torch.jit.fork(self.count, x)
        return torch.jit.wait(counted) @ self.weight


class InPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = AssignsATensor()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


class Keeps(Base):
    """Modifies its buffer, argument and result, and assigns in a method that forward does not call."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept += 1
        x.mul_(1.0)
        y = x @ self.weight
        return y.mul_(1.0)

    @torch.jit.export
    def reset(self) -> None:
        self.calls = 0
        self.mean = torch.zeros(4)


# Modules with words of the error.
REFUSED: list[tuple[type[nn.Module], str]] = [
    (CountsInANumber, "assigns 'calls', which is not a buffer"),
    (AssignsATensor, "assigns 'mean', which is not a buffer"),
    (CountsWhileItEvaluates, "assigns 'calls', which is not a buffer"),
    (DecaysItsWeight, r"changes in place \(aten::mul_\) 'weight', a parameter"),
    (DecaysARow, r"changes in place \(aten::mul_\) 'weight', a parameter"),
    (Remembers, r"changes in place \(aten::append\) 'history', which is not a buffer"),
    (RemembersByName, r"changes in place \(aten::_set_item\) 'named', which is not a buffer"),
    (CountsBeside, "assigns 'calls', which is not a buffer"),
    (InPart, "assigns 'part.mean', which is not a buffer"),
]
NAMES = [module.__name__ for module, _ in REFUSED]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("module_state")
    for make in [module for module, _ in REFUSED] + [Keeps]:
        models.export(directory / "models" / make.__name__, make(), inputs=[torch.ones(1, 4)])
    with Server(directory / "models", "cpu*2", directory / "run") as server:
        with braid.connect(server.address) as connected:
            yield connected


@pytest.mark.parametrize(("module", "reason"), REFUSED, ids=NAMES)
def test_stateful_model_is_not_trainable(
    client: braid.Client, module: type[nn.Module], reason: str
) -> None:
    with pytest.raises(braid.FailedPrecondition, match=reason) as caught:
        client.create_trainer(module.__name__, loss="cross_entropy", optimizer=SGD)
    assert "expected" in caught.value.message
    assert client.trainers() == []


@pytest.mark.parametrize("name", NAMES)
def test_stateful_model_is_served(client: braid.Client, name: str) -> None:
    output = client.infer(name, {"x": np.ones((1, 4), np.float32)})["output__0"]
    # Less than 4 if the weight decays with each request and during loading.
    assert output.shape == (1, 2)
    assert np.all((0 < output) & (output <= 4))


def test_model_that_changes_buffers_is_trained(client: braid.Client) -> None:
    batch = {"x": np.ones((4, 4), np.float32)}, {"target": np.zeros(4, np.int64)}
    with training.new_trainer(client, "Keeps", loss="cross_entropy", optimizer=SGD) as trainer:
        trainer.step(*batch)
        trainer.forward(batch[0], mode="eval")
        assert trainer.state_dict()["kept"] == 1


class Centred(nn.Module):
    """A loss with a moving centre."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.centre = self.centre * 0.9 + output.detach().mean(0) * 0.1
        return (output - self.centre).square().mean()


class CentredInPlace(Centred):
    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.centre.mul_(0.9).add_(output.detach().mean(0), alpha=0.1)
        return (output - self.centre).square().mean()


class OfPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Centred()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.part(output, target)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Centred, "assigns 'centre'"),
        (CentredInPlace, r"changes in place \(aten::mul_\) 'centre'"),
        (OfPart, "assigns 'part.centre'"),
    ],
    ids=["assigned", "in place", "submodule"],
)
def test_stateful_loss_module_is_rejected(
    client: braid.Client, make: Callable[[], nn.Module], reason: str
) -> None:
    loss = {"name": "module", "module": torch.jit.script(make())}
    with pytest.raises(braid.InvalidArgument, match=f"keeps state: its forward {reason}") as caught:
        client.create_trainer("Keeps", loss=loss, optimizer=SGD)
    assert caught.value.field == "losses[0].module"
