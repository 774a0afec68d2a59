"""`braid.fit` against a fake server, whose loss is the number of updates."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import braid
from braid import _fit

OPTIONS = {"loss": "cross_entropy", "optimizer": "SGD"}


def loader(rows=10, batch_size=4):
    dataset = TensorDataset(torch.arange(rows * 784.0).reshape(rows, 784), torch.arange(rows))
    return DataLoader(dataset, batch_size=batch_size)


def steps(server):
    return server.received("Step")


def names(tensors):
    return [tensor.name for tensor in tensors]


def test_trains_on_each_batch_of_each_epoch(client, server):
    result = braid.fit(client, "fashion", loader(), epochs=2, **OPTIONS)
    assert [step.inputs[0].shape[0] for step in steps(server)] == [4, 4, 2, 4, 4, 2]
    first = steps(server)[0]
    assert (names(first.inputs), names(first.targets)) == (["x"], ["target"])
    assert np.frombuffer(first.targets[0].data, np.int64).tolist() == [0, 1, 2, 3]
    assert result.losses.tolist() == [1, 2, 3, 4, 5, 6]
    assert (result.evaluations, result.version) == ((), None)
    assert result.trainer.info().step == 6


def test_evaluates_after_each_epoch_and_publishes(client, server):
    result = braid.fit(
        client, "fashion", loader(), epochs=2, evaluate=loader(5, 5), metrics=["accuracy"],
        publish=True, **OPTIONS,
    )  # fmt: skip
    assert [evaluation.metrics for evaluation in result.evaluations] == 2 * [{"accuracy": 0.75}]
    assert [evaluation.rows for evaluation in result.evaluations] == [5, 5]
    assert result.version == 2


def test_continues_with_a_trainer(client, server):
    trainer = client.create_trainer("fashion", name="first", **OPTIONS)
    trainer.step({"x": np.zeros((1, 784), np.float32)}, {"target": np.zeros(1, np.int64)})
    result = braid.fit(client, trainer, loader())
    assert result.trainer is trainer
    assert result.losses.tolist() == [2, 3, 4]
    with pytest.raises(ValueError, match="loss: not allowed when `model` is a Trainer"):
        braid.fit(client, trainer, loader(), loss="mse")


@pytest.mark.parametrize("batch", [
    (np.zeros((2, 784)), np.zeros(2)),
    [np.zeros((2, 784)), np.zeros(2)],
    ({"x": np.zeros((2, 784))}, {"target": np.zeros(2)}),
    ({"x": np.zeros((2, 784))}, np.zeros(2)),
    ([np.zeros((2, 784))], [np.zeros(2)]),
    {"target": np.zeros(2), "x": np.zeros((2, 784))},
])  # fmt: skip
def test_forms_of_batches(client, server, batch):
    braid.fit(client, "fashion", [batch], **OPTIONS)
    [step] = steps(server)
    assert (names(step.inputs), names(step.targets)) == (["x"], ["target"])


def test_model_that_returns_its_loss_has_no_targets(client, server):
    braid.fit(client, "fashion", [np.zeros((2, 784))], loss_mode="model", optimizer="SGD")
    assert names(steps(server)[0].targets) == []


def test_wrong_batches_and_loaders_are_errors(client, server):
    with pytest.raises(ValueError, match="3 tensors .expected 2: x, target; or a dict"):
        braid.fit(client, "fashion", [3 * (np.zeros(2),)], **OPTIONS)
    with pytest.raises(ValueError, match="no batch in epoch 2 "):
        braid.fit(client, "fashion", iter(loader()), epochs=2, **OPTIONS)
    with pytest.raises(ValueError, match="epochs: 0 "):
        braid.fit(client, "fashion", loader(), epochs=0, **OPTIONS)
    with pytest.raises(ValueError, match="loss_mode: 'client' "):
        braid.fit(client, "fashion", loader(), loss_mode="client", optimizer="SGD")
    assert server.trainers == {}  # Those without a name are deleted after an error.
    with pytest.raises(ValueError, match="3 tensors"):
        braid.fit(client, "fashion", [3 * (np.zeros(2),)], name="kept", **OPTIONS)
    assert list(server.trainers) == ["kept"]


def test_rows_are_counted_along_the_batch(client, server):
    server.batch_dims = {"x": 1}
    trainer = client.create_trainer("fashion", **OPTIONS)
    batches = _fit._Batches(client, trainer)
    assert batches.rows({"x": np.zeros((3, 5, 2))}) == 5
    assert batches.rows({"other": np.zeros((3, 5, 2))}) == 3


def test_progress_bar(client, capsys):
    braid.fit(
        client, "fashion", loader(), evaluate=loader(), metrics=["accuracy"], progress=True,
        **OPTIONS,
    )  # fmt: skip
    assert "epoch 1/1  evaluation  loss 0.5  accuracy 0.75\n" in capsys.readouterr().err
    braid.fit(client, "fashion", (batch for batch in loader()), progress=True, **OPTIONS)
    braid.fit(client, "fashion", loader(), **OPTIONS)
    assert "epoch" not in capsys.readouterr().err
