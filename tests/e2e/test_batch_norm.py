"""Batch norm on several replicas: each normalizes its chunk, and the running statistics come from
the primary's chunk. The oracle runs the model chunk by chunk in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, oracle, training
from e2e.support.server import Server

SGD = {"name": "SGD", "lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}


def connect(serve: Callable[[str], Server], replicas: int) -> braid.Client:
    return braid.connect(serve(f"cpu*{replicas}").address)


@pytest.fixture(scope="module")
def client(serve: Callable[[str], Server]) -> Iterator[braid.Client]:
    """A client of a server with two replicas."""
    with connect(serve, 2) as client:
        yield client


@pytest.mark.parametrize("rows", [20, 97])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
# In float32, ReLU and pooling branch on rounding errors in longer runs.
@pytest.mark.parametrize(
    ("model", "steps", "tolerance"), [("convnet64", 20, 1e-9), ("convnet", 5, 1e-4)]
)
def test_convnet_training_equals_pytorch_per_chunk(
    serve: Callable[[str], Server],
    model: str,
    steps: int,
    tolerance: float,
    replicas: int,
    rows: int,
) -> None:
    loss = "cross_entropy"
    with connect(serve, replicas) as client:
        batches = oracle.batches_of(model, loss, rows, steps)
        actual = training.train(client, model, batches, SGD, loss)
    wanted = oracle.reference(model, tuple(SGD.items()), loss, rows, steps, replicas)
    assert actual.state["features.1.num_batches_tracked"] == steps
    oracle.assert_equal_runs(actual, wanted, tolerance)


def test_running_statistics_come_from_the_first_chunk(client: braid.Client) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 3, 224, 224, generator=generator)
    first, second = 12 * x[:16] + 7, 5 * x[16:] - 9
    with training.new_trainer(
        client, "statistics", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        trainer.forward({"x": torch.cat([first, second])}, mode="train")
        state = trainer.state_dict()
    by_channel = first.double().transpose(0, 1).flatten(1)
    np.testing.assert_allclose(state["norm.running_mean"], by_channel.mean(1), rtol=1e-5)
    np.testing.assert_allclose(state["norm.running_var"], by_channel.var(1), rtol=1e-5)
    assert state["norm.num_batches_tracked"] == 1


def test_training_and_evaluation_mode_are_per_call(client: braid.Client) -> None:
    """A training pass changes the trainer's buffers, and evaluation then uses them. Inference on
    the version that the trainer started from does not change."""
    x = oracle.dataset("convnet64", 30)[0]
    module = models.make("convnet64").eval()
    served = client.infer("convnet64", {"x": x})["output__0"]
    with training.new_trainer(
        client, "convnet64", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        trained = trainer.forward({"x": x}, mode="train").outputs["output__0"]
        again = client.infer("convnet64", {"x": x})["output__0"]
        evaluated = trainer.forward({"x": x}, mode="eval").outputs["output__0"]
    with torch.no_grad():
        for output in (served, again):
            np.testing.assert_allclose(output, module(x), rtol=0, atol=1e-9)
        wanted = oracle.forward_in_chunks(module.train(), x, 2)
        np.testing.assert_allclose(trained, wanted, rtol=0, atol=1e-9)
        np.testing.assert_allclose(evaluated, module.eval()(x), rtol=0, atol=1e-9)
