"""What a trainer sends, and what it makes of the replies."""

import numpy as np
import pytest

import braid

X = {"x": np.ones((5, 2), np.float32)}
Y = {"target": np.zeros(5, np.int64)}


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="cross_entropy", optimizer="SGD")


def test_step(server, trainer):
    result = trainer.step(X, Y, lr=0.5, momentum=0, report_split=True)
    assert (result.loss, result.step, result.sequence, result.replayed) == (1.0, 1, 1, False)
    assert result.chunks == (braid.Chunk("cpu:0", 3), braid.Chunk("cpu:1", 2))
    (request,) = server.received("Step")
    assert request.trainer == "fashion"
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == [("x", "FP32", [5, 2])]
    assert request.inputs[0].data == X["x"].tobytes()
    assert [(t.name, t.datatype, list(t.shape)) for t in request.targets] == [
        ("target", "INT64", [5])
    ]
    hyper_parameters = request.hyper_parameters
    assert (hyper_parameters.lr, hyper_parameters.momentum) == (0.5, 0)
    assert hyper_parameters.HasField("momentum")  # 0 is a value, not an absence.
    assert not hyper_parameters.HasField("weight_decay")


def test_without_hyper_parameters_none_are_sent(server, trainer):
    result = trainer.step(X, Y)
    assert result.chunks == ()
    assert not server.received("Step")[0].HasField("hyper_parameters")


def test_accumulation(server, trainer):
    assert trainer.forward_backward(X, Y).step == 0
    assert trainer.forward_backward(X, Y, report_split=True).chunks[0].rows == 3
    assert trainer.info().accumulated == 2
    result = trainer.optim_step(lr=0.05, weight_decay=0.1)
    assert (result.step, result.sequence) == (1, 3)
    (request,) = server.received("OptimStep")
    assert (request.hyper_parameters.lr, request.hyper_parameters.weight_decay) == (0.05, 0.1)


def test_optim_step_without_gradients_uses_up_no_number(trainer):
    with pytest.raises(braid.FailedPrecondition, match="no gradients"):
        trainer.optim_step()
    assert trainer.step(X, Y).sequence == 1


def test_forward(server, trainer):
    result = trainer.forward(X, report_split=True)
    assert result.loss is None
    assert sum(chunk.rows for chunk in result.chunks) == 5
    np.testing.assert_array_equal(result.outputs["x"], X["x"])
    assert trainer.forward(X, Y, mode="eval").loss == 0.0
    assert [request.mode for request in server.received("Forward")] == [1, 2]


def test_an_unknown_mode(trainer):
    with pytest.raises(ValueError, match="unknown mode 'test'; known: train, eval"):
        trainer.forward(X, mode="test")


def test_publish(server, trainer):
    assert trainer.publish() == 2
    assert trainer.publish("fashion") == 3
    with pytest.raises(ValueError, match="trains model 'fashion'.*cannot publish to 'other'"):
        trainer.publish("other")
    assert len(server.received("Publish")) == 2


def test_attaching_goes_on_with_the_next_number(client, trainer):
    trainer.step(X, Y)
    attached = client.trainer("fashion")
    assert attached.step(X, Y).sequence == 2
    # The first handle has fallen behind; its next number was another request.
    with pytest.raises(braid.Aborted):
        trainer.step({"x": X["x"] + 1}, Y)
    assert trainer.sync().step == 2
    assert trainer.step(X, Y).sequence == 3


def test_attaching_to_none(client):
    with pytest.raises(braid.NotFound, match="other"):
        client.trainer("other")


def test_info(client):
    trainer = client.create_trainer(
        "fashion",
        name="mine",
        version=3,
        loss={"name": "cross_entropy", "label_smoothing": 0.1, "reduction": "sum"},
        optimizer={"name": "AdamW", "lr": 0.01, "betas": (0.8, 0.99)},
    )
    info = trainer.info()
    assert (trainer.name, trainer.model) == (info.name, info.model) == ("mine", "fashion")
    assert info.base_version == 3
    assert info.loss == {"name": "cross_entropy", "label_smoothing": 0.1, "reduction": "sum"}
    assert info.optimizer == {"name": "AdamW", "lr": 0.01, "betas": (0.8, 0.99)}
    assert info.devices == ("cpu:0", "cpu:1")
    assert (info.step, info.applied_sequence, info.durable_sequence, info.accumulated) == (
        0, 0, 0, 0
    )
    assert repr(trainer) == "<braid.Trainer 'mine' of model 'fashion'>"


def test_list_and_delete(client):
    for name in ("b", "a"):
        client.create_trainer("fashion", name=name, loss="mse", optimizer="SGD")
    assert [info.name for info in client.trainers()] == ["a", "b"]
    client.delete_trainer("a")
    client.trainer("b").delete()
    assert client.trainers() == []
