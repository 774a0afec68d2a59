"""Training does not depend on where the loss is computed."""

from __future__ import annotations

from collections.abc import Callable

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, training
from e2e.support.reference import Reference
from e2e.support.server import Server
from e2e.support.training import (
    ONE_STEP,
    assert_equal_runs,
    batches,
    classes,
    new_trainer,
    on,
    rows,
)
from torch import Tensor, nn
from torch.nn import functional

SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}
REPLICAS = pytest.mark.parametrize("replicas", [1, 2, 3, 4])
ROWS = 11


def cross_entropy(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(outputs["output__0"], targets["target"])


@REPLICAS
def test_simple_network_equals_pytorch(serve: Callable[[str], Server], replicas: int) -> None:
    """Linear(10,3), Linear(3,4), Linear(4,5), a 20×10 batch, cross-entropy: one loss."""
    x, labels = rows(20, 10).float(), classes(20)
    module = models.make("chain")
    loss = functional.cross_entropy(module(x), labels)
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    with braid.connect(serve("cpu*4").address) as client, new_trainer(
        client,
        "chain",
        stages=on(replicas),
        loss="cross_entropy",
        optimizer={"name": "SGD", "lr": 0.1},
    ) as trainer:
        assert trainer.step({"x": x}, {"target": labels}).loss == pytest.approx(
            loss.item(), rel=1e-5, abs=1e-6
        )
        state = trainer.state_dict()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)


@REPLICAS
@pytest.mark.parametrize("mode", ["central", "per_replica"])
@pytest.mark.parametrize(
    "loss",
    [
        {"name": "cross_entropy"},
        {"name": "cross_entropy", "reduction": "sum"},
        {"name": "cross_entropy", "weight": [0.5, 2.0, 0.0, 1.0, 3.0], "ignore_index": 4},
        {"name": "cross_entropy", "label_smoothing": 0.2, "weight": [1.0, 2.0, 3.0, 4.0, 5.0]},
    ],
    ids=["mean", "sum", "weights", "smoothing"],
)
def test_central_and_per_replica_losses_are_equal(
    trainers: braid.Client, loss: dict, mode: str, replicas: int
) -> None:
    training.compare(
        trainers, "net", batches(5, ROWS), SGD, loss, replicas=replicas, loss_mode=mode
    )


@pytest.mark.parametrize("mode", ["central", "per_replica"])
def test_chunk_with_only_ignored_targets(trainers: braid.Client, mode: str) -> None:
    labels = classes(9)
    labels[:4] = -100
    batch = ({"x": rows(9, 10)}, {"target": labels})
    training.compare(
        trainers, "net", [batch], SGD, "cross_entropy", tolerance=ONE_STEP, loss_mode=mode
    )


@REPLICAS
@pytest.mark.parametrize("mode", ["central", "per_replica"])
def test_weighted_losses_are_summed(trainers: braid.Client, mode: str, replicas: int) -> None:
    losses = [
        {"name": "cross_entropy", "output": "classes", "target": "labels", "weight": [1, 2, 3, 0]},
        {"name": "mse", "output": "value", "target": "wanted", "factor": 0.25},
        {"name": "l1", "output": "value", "target": "wanted", "factor": 2, "reduction": "sum"},
    ]
    batch = (
        {"x": rows(ROWS, 6)},
        {"labels": classes(ROWS, of=4), "wanted": rows(ROWS, 1, seed=1)},
    )
    training.compare(
        trainers, "heads", [batch] * 5, SGD, losses, replicas=replicas, loss_mode=mode
    )


@REPLICAS
@pytest.mark.parametrize("output", ["loss", "losses"])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_model_loss_training_equals_pytorch(
    trainers: braid.Client, name: str, output: str, replicas: int
) -> None:
    """A scalar or one value per row. Over uneven chunks, the mean is that of the whole batch."""
    spec = {"name": name, "lr": 0.1}
    batch = ({"x": rows(ROWS, 6), "labels": classes(ROWS, of=4)}, {})
    wanted = Reference("with_loss", spec, lambda outputs, _: outputs["output__0"])
    as_targets = ({"x": batch[0]["x"]}, {"labels": batch[0]["labels"]})
    actual = training.run(
        trainers,
        "with_loss",
        [batch, as_targets] * 3,
        replicas,
        optimizer=spec,
        loss={"output": output},
        loss_mode="model",
    )
    assert_equal_runs(actual, wanted.train([batch] * 6), 1e-12)


@pytest.mark.parametrize("output", ["loss", "losses"])
def test_unweighted_mean_over_chunks(trainers: braid.Client, output: str) -> None:
    """7 rows on 3 replicas are split into 3, 3 and 1; each chunk has weight 1/3."""
    inputs = {"x": rows(7, 6), "labels": classes(7, of=4)}

    def plain_mean(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        return torch.stack([chunk.mean() for chunk in outputs["output__1"].chunk(3)]).mean()

    wanted = Reference("with_loss", SGD, plain_mean).train([(inputs, {})] * 3)
    actual = training.run(
        trainers,
        "with_loss",
        [(inputs, {})] * 3,
        optimizer=SGD,
        loss={"output": output},
        loss_mode="model",
        unweighted_mean=True,
    )
    assert_equal_runs(actual, wanted, ONE_STEP * 10)


@REPLICAS
def test_client_loss_training_equals_pytorch(trainers: braid.Client, replicas: int) -> None:
    """A client loss that couples the rows, with and without updates."""

    def loss_of(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        centered = outputs["classes"] - outputs["classes"].mean(0)
        return (centered.square().sum() * outputs["value"].exp().mean()).log()

    x = rows(ROWS, 6)
    wanted = Reference("heads", SGD, loss_of)
    with new_trainer(
        trainers, "heads", stages=on(replicas), loss_mode="client", optimizer=SGD
    ) as trainer:
        for accumulated in (1, 2, 1):
            for _ in range(accumulated):
                outputs = {
                    name: torch.from_numpy(value).requires_grad_()
                    for name, value in trainer.forward({"x": x}, keep_graph=True).outputs.items()
                }
                loss = loss_of(outputs, {})
                loss.backward()
                trainer.backward({name: value.grad for name, value in outputs.items()})
                assert loss.item() == pytest.approx(wanted.accumulate({"x": x}, {}), abs=1e-12)
            trainer.optim_step()
            wanted.update()
        training.assert_state(trainer, wanted, 1e-11)


def test_output_without_client_gradient_is_unused(trainers: braid.Client) -> None:
    x = rows(ROWS, 6)
    wanted = Reference("heads", SGD, lambda outputs, _: outputs["classes"].square().sum() / 2)
    with new_trainer(
        trainers, "heads", stages=on(3), loss_mode="client", optimizer=SGD
    ) as trainer:
        outputs = trainer.forward({"x": x}, keep_graph=True).outputs
        trainer.backward({"classes": outputs["classes"]})
        trainer.optim_step(weight_decay=0.1)
        wanted.accumulate({"x": x}, {})
        wanted.stepper.param_groups[0]["weight_decay"] = 0.1
        wanted.update()
        training.assert_state(trainer, wanted, ONE_STEP)


class WideHeads(nn.Module):
    """Linear(768, 76800) → ReLU → Linear(76800, 1). Returns the hidden layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(768, 76800)
        self.narrow = nn.Linear(76800, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.wide(x).relu()
        return hidden, self.narrow(hidden)


def test_two_losses_on_a_wide_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("wide")
    torch.manual_seed(0)
    module = WideHeads()
    models.export(directory / "models/wide", module, inputs=[torch.zeros(1, 768)])
    x = rows(5, 768).float()
    targets = {"hidden": rows(5, 76800).float(), "value": rows(5, 1, seed=1).float()}
    losses = [
        {"name": "mse", "target": "hidden", "factor": 3.0},
        {"name": "mse", "output": "output__1", "target": "value", "factor": 0.5},
    ]
    optimizer = {"name": "SGD", "lr": 1e-5}
    with Server(
        directory / "models", "cpu*2", directory / "run", ("--cpu_threads=1",), data=False
    ) as server:
        with braid.connect(server.address) as client:
            actual = training.run(
                client, "wide", [({"x": x}, targets)] * 2, 2, loss=losses, optimizer=optimizer
            )
    stepper = torch.optim.SGD(module.parameters(), lr=1e-5)
    wanted = []
    for _ in range(2):
        hidden, value = module.train()(x)
        loss = 3 * functional.mse_loss(hidden, targets["hidden"])
        loss = loss + 0.5 * functional.mse_loss(value, targets["value"])
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        wanted.append(loss.item())
    assert wanted[1] < wanted[0]
    np.testing.assert_allclose(actual.losses, wanted, rtol=1e-5)
    for name, parameter in module.state_dict().items():
        np.testing.assert_allclose(actual.state[name], parameter, rtol=1e-5, atol=1e-6)
