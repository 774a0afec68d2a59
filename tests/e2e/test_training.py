"""200 steps on 1 to 4 replicas equal 200 steps of plain PyTorch on the whole batch.

In float64 to 1e-9 and in float32 to 1e-4, with batches that divide evenly and that do not. The
float32 network has a smooth activation. With ReLU, a unit near zero can change sign with the order
of a sum, and both results would be correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
from e2e.support import oracle, training
from e2e.support.server import Server

STEPS = 200
ROWS = [20, 97, 256]
REPLICAS = [1, 2, 3, 4]
SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
ADAMW = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.05}
TOLERANCE = {"64": 1e-9, "": 1e-4}


@pytest.fixture(scope="module", params=REPLICAS, ids=lambda count: f"cpu{count}")
def client(
    request: pytest.FixtureRequest, serve: Callable[[str], Server]
) -> Iterator[braid.Client]:
    """A client of a server with one, two, three and four replicas."""
    with braid.connect(serve(f"cpu*{request.param}").address) as client:
        yield client


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("model", "optimizer", "loss"),
    [
        ("chain", SGD, "cross_entropy"),
        ("chain", ADAMW, "mse"),
        ("chain64", SGD, "cross_entropy"),
        ("chain64", SGD, "mse"),
        ("chain64", ADAMW, "cross_entropy"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else value,
)
def test_training_equals_pytorch(
    client: braid.Client, model: str, optimizer: dict, loss: str, rows: int
) -> None:
    compare(client, model, optimizer, loss, rows)


# One optimizer and batch size each, because the runs are long.
@pytest.mark.parametrize(("model", "optimizer", "rows"), [("mlp64", SGD, 97), ("smooth", ADAMW, 20)])
def test_training_of_a_larger_network_equals_pytorch(
    client: braid.Client, model: str, optimizer: dict, rows: int
) -> None:
    compare(client, model, optimizer, "cross_entropy", rows)


def test_same_seed_is_bit_reproducible(client: braid.Client) -> None:
    def run() -> oracle.Run:
        batches = oracle.batches_of("smooth", "cross_entropy", 97, steps=20)
        return training.train(client, "smooth", batches, SGD, "cross_entropy")

    first, second = run(), run()
    assert first.losses == second.losses
    assert first.state.keys() == second.state.keys()
    for name, value in first.state.items():
        assert value.tobytes() == second.state[name].tobytes(), name


def compare(client: braid.Client, model: str, optimizer: dict, loss: str, rows: int) -> None:
    batches = oracle.batches_of(model, loss, rows, STEPS)
    actual = training.train(client, model, batches, optimizer, loss)
    wanted = oracle.reference(model, tuple(optimizer.items()), loss, rows, STEPS)
    # Checks that training changed something; otherwise equality would prove little.
    assert wanted.losses[-1] < 0.8 * wanted.losses[0]
    oracle.assert_equal_runs(actual, wanted, TOLERANCE["64" if model.endswith("64") else ""])


def test_accumulated_gradients_equal_pytorch(client: braid.Client) -> None:
    """ForwardBackward three times, with batches of three sizes, then one update, twice."""
    sizes = [20, 5, 97]
    x, labels = oracle.dataset("chain64")
    module = oracle.models.make("chain64").train()
    stepper = oracle.make_optimizer(module, SGD)
    losses, wanted = [], []
    with training.new_trainer(
        client, "chain64", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        for update in range(2):
            for accumulated, rows in enumerate(sizes, start=1):
                part = slice(update * 200, update * 200 + rows)
                result = trainer.forward_backward({"x": x[part]}, {"target": labels[part]})
                assert trainer.info().accumulated == accumulated
                assert result.step == update
                losses.append(result.loss)
                loss = oracle.LOSSES["cross_entropy"](module(x[part]), labels[part])
                loss.backward()
                wanted.append(loss.item())
            assert trainer.optim_step().step == update + 1
            assert trainer.info().accumulated == 0
            stepper.step()
            stepper.zero_grad()
        actual = oracle.Run(losses, trainer.state_dict())
    oracle.assert_equal_runs(actual, oracle.Run(wanted, oracle.state_of(module)), 1e-9)


def test_evaluation_leaves_the_trainer_unchanged(client: braid.Client) -> None:
    x, labels = oracle.dataset("convnet64", 30)
    module = oracle.models.make("convnet64").eval()
    with training.new_trainer(
        client, "convnet64", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        before = trainer.state_dict()
        result = trainer.forward({"x": x}, {"target": labels}, mode="eval")
        after = trainer.state_dict()
    outputs = module(x)
    np.testing.assert_allclose(result.outputs["output__0"], outputs.detach(), rtol=0, atol=1e-9)
    loss = oracle.LOSSES["cross_entropy"](outputs, labels).item()
    assert result.loss == pytest.approx(loss, abs=1e-9)
    for name, value in before.items():
        assert value.tobytes() == after[name].tobytes(), name
