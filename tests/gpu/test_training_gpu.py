"""Training on a GPU equals PyTorch's on the CPU, to the tolerances of test_inference_gpu.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import pytest
from e2e.support import oracle, training
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from e2e.test_publish import module_of, train

from gpu.target import REPLICAS, TRAINED_ROWS

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
# The bias before a batch norm has no gradient but rounding errors, which AdamW multiplies by lr / eps.
ADAMW = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.05, "eps": 1e-5}


@pytest.fixture(scope="module")
def client(serve: Callable[[str], Server], devices: str) -> Iterator[braid.Client]:
    with braid.connect(serve(devices).address) as client:
        yield client


@pytest.mark.parametrize("rows", TRAINED_ROWS)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=lambda spec: spec["name"])
@pytest.mark.parametrize(
    ("model", "steps", "tolerance"),
    [("mlp64", 200, 1e-9), ("smooth", 200, 1e-3), ("convnet64", 20, 1e-9)],
)
def test_training_equals_pytorch(
    client: braid.Client,
    devices: str,
    model: str,
    steps: int,
    tolerance: float,
    optimizer: dict,
    rows: int,
) -> None:
    loss = "cross_entropy"
    batches = oracle.batches_of(model, loss, rows, steps)
    actual = training.train(client, model, batches, optimizer, loss)
    # Only batch norm depends on how the batch is cut.
    replicas = REPLICAS[devices] if model.startswith("convnet") else 1
    wanted = oracle.reference(model, tuple(optimizer.items()), loss, rows, steps, replicas)
    oracle.assert_equal_runs(actual, wanted, tolerance)


def test_synchronized_batch_norm_equals_the_whole_batch(client: braid.Client) -> None:
    loss, rows, steps = "cross_entropy", 97, 20
    batches = oracle.batches_of("convnet64", loss, rows, steps)
    actual = training.train(client, "convnet64", batches, SGD, loss, sync_batch_norm=True)
    wanted = oracle.reference("convnet64", tuple(SGD.items()), loss, rows, steps, replicas=1)
    oracle.assert_equal_runs(actual, wanted, tolerance=1e-9)


def test_same_seed_is_bit_reproducible(client: braid.Client) -> None:
    def run() -> oracle.Run:
        batches = oracle.batches_of("smooth", "cross_entropy", 97, steps=20)
        return training.train(client, "smooth", batches, SGD, "cross_entropy")

    first, second = run(), run()
    assert first.losses == second.losses
    for name, value in first.state.items():
        assert value.tobytes() == second.state[name].tobytes(), name


def test_published_weights_are_served(start_server: Callable[..., Server], devices: str) -> None:
    server = start_server(devices, names=("convnet64",))
    x = oracle.dataset("convnet64", 300)[0].numpy()
    with braid.connect(server.address) as client:
        trainer = client.create_trainer("convnet64", loss="cross_entropy", optimizer=SGD)
        train(trainer)
        assert trainer.publish() == 2
        (output,) = client.infer("convnet64", {"x": x}).values()
        assert_close(output, expected(module_of(trainer), x), rtol=1e-9, atol=1e-9)
    server.stop()
