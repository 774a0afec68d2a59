"""Requests and results of a trainer."""

import datetime

import grpc
import numpy as np
import pytest

import braid

X = {"x": np.ones((5, 2), np.float32)}
Y = {"target": np.zeros(5, np.int64)}


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="cross_entropy", optimizer="SGD")


def test_step_sends_batch_and_hyper_parameters(server, trainer):
    result = trainer.step(X, Y, lr=0.5, momentum=0, report_split=True)
    assert (result.loss, result.step, result.sequence, result.replayed) == (1.0, 1, 1, False)
    assert result.chunks == (
        braid.Chunk("cpu:0", 3, "features", ((3, 2),), ((3, 3), ())),
        braid.Chunk("cpu:1", 2, "features", ((2, 2),), ((2, 3), ())),
    )
    assert result.phases == {"forward": 0.5, "reduce": 0.25}
    assert (result.lr, result.gradient_norm, result.skipped) == (0.5, None, False)
    assert result.lrs == {"": 0.5, "^head": 0.01}
    (request,) = server.received("Step")
    assert request.trainer == "fashion"
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == [("x", "FP32", [5, 2])]
    assert request.inputs[0].data == X["x"].tobytes()
    assert [(t.name, t.datatype, list(t.shape)) for t in request.targets] == [
        ("target", "INT64", [5])
    ]
    hyper_parameters = request.hyper_parameters
    assert (hyper_parameters.lr, hyper_parameters.momentum) == (0.5, 0)
    assert hyper_parameters.HasField("momentum")  # 0 is a value, not absent.
    assert not hyper_parameters.HasField("weight_decay")
    assert not hyper_parameters.HasField("metric")
    assert not hyper_parameters.group_lr


def test_result_contains_gradient_norm_and_skipped(server, trainer):
    fake = server.trainers["fashion"]
    work = fake._work

    def clip(*arguments):
        reply = work(*arguments)
        reply.status.gradient_norm = 0
        reply.status.skipped = True
        return reply

    fake._work = clip
    result = trainer.step(X, Y)
    assert (result.gradient_norm, result.skipped) == (0, True)


def test_absent_hyper_parameters_are_not_sent(server, trainer):
    result = trainer.step(X, Y)
    assert result.chunks == ()
    assert not server.received("Step")[0].HasField("hyper_parameters")


def test_gradients_accumulate_until_optim_step(server, trainer):
    assert trainer.forward_backward(X, Y).step == 0
    assert trainer.forward_backward(X, Y, report_split=True).chunks[0].rows == 3
    assert trainer.info().accumulated == 2
    result = trainer.optim_step(lr=0.05, weight_decay=0.1, group_lr=(0, 0.5), metric=0)
    assert (result.step, result.sequence) == (1, 3)
    (request,) = server.received("OptimStep")
    assert (request.hyper_parameters.lr, request.hyper_parameters.weight_decay) == (0.05, 0.1)
    assert list(request.hyper_parameters.group_lr) == [0, 0.5]
    assert request.hyper_parameters.HasField("metric")


def test_optim_step_without_gradients_uses_no_number(trainer):
    with pytest.raises(braid.FailedPrecondition, match="no gradients"):
        trainer.optim_step()
    assert trainer.step(X, Y).sequence == 1


def test_forward_returns_outputs_and_loss(server, trainer):
    result = trainer.forward(X, report_split=True)
    assert result.loss is None
    assert sum(chunk.rows for chunk in result.chunks) == 5
    np.testing.assert_array_equal(result.outputs["x"], X["x"])
    assert trainer.forward(X, Y, mode="eval").loss == 0.0
    assert [request.mode for request in server.received("Forward")] == [1, 2]


def test_backward_accepts_gradients_of_the_callers_loss(server, client):
    trainer = client.create_trainer("fashion", loss_mode="client", optimizer="SGD")
    outputs = trainer.forward(X, keep_graph=True).outputs
    assert trainer.backward(outputs).sequence == 2
    assert trainer.optim_step().step == 1
    assert server.received("Forward")[0].keep_graph
    (request,) = server.received("Backward")
    assert [tensor.name for tensor in request.output_gradients] == ["x"]
    with pytest.raises(braid.FailedPrecondition, match="no graph"):
        trainer.backward(outputs)
    assert server.trainers["fashion"].proto.losses == []


def test_unknown_mode_is_rejected(trainer):
    with pytest.raises(ValueError, match="mode: 'test' \\(expected one of train, eval\\)"):
        trainer.forward(X, mode="test")


def test_publish_returns_the_version(server, trainer):
    assert trainer.publish() == 2
    assert trainer.publish("other") == 3
    assert [request.target_model for request in server.received("Publish")] == ["", "other"]


def test_publish_waits_until_the_version_is_durable(server, trainer):
    fake = server.trainers["fashion"]
    fake.durability = "DURABLE"
    assert trainer.publish(wait_durable=True) == 2
    with trainer.stream() as stream:
        assert stream.publish(wait_durable=True).result() == 3
    assert [request.wait_durable for request in server.received("Publish")] == [True, True]
    fake.durability = "FAILED"
    assert trainer.publish() == 4
    with pytest.raises(braid.DataLoss, match="version 5 .* not written: disk full"):
        trainer.publish(wait_durable=True)


def test_attached_handle_continues_with_the_next_number(client, trainer):
    trainer.step(X, Y)
    attached = client.trainer("fashion")
    assert attached.step(X, Y).sequence == 2
    # The first handle is behind. Its request is equal, but it is another client.
    with pytest.raises(braid.Aborted):
        trainer.step(X, Y)
    assert trainer.sync().step == 2
    assert trainer.step(X, Y).sequence == 3


def test_new_trainer_with_the_same_name_is_detected(client, server, trainer):
    trainer.step(X, Y)
    trainer.delete()
    other = client.create_trainer("fashion", loss="cross_entropy", optimizer="SGD")
    other.step(X, Y)
    with pytest.raises(braid.Aborted, match="'fashion': was deleted and created again"):
        trainer.state_dict()
    assert other.state_dict().keys()


def test_missing_trainer_is_not_found(client):
    with pytest.raises(braid.NotFound, match="other"):
        client.trainer("other")


def test_info_describes_the_trainer(client):
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
    assert info.losses == [info.loss]
    assert info.loss == {"name": "cross_entropy", "label_smoothing": 0.1, "reduction": "sum"}
    assert info.options == {}
    assert (info.skipped, info.lr, info.lrs) == (0, 0.1, {"": 0.1, "^head": 0.01})
    assert info.memory == [braid.DeviceMemory("cpu:0", 10, 20)]
    assert info.optimizer == {"name": "AdamW", "lr": 0.01, "betas": (0.8, 0.99)}
    assert info.devices == ("cpu:0", "cpu:1")
    assert (info.step, info.applied_sequence, info.durable_sequence, info.accumulated) == (
        0, 0, 0, 0
    )
    assert repr(trainer) == "<braid.Trainer 'mine' of model 'fashion'>"


def test_options_round_trip_through_the_server(server, client):
    options = {
        "loss_mode": "per_replica",
        "unweighted_mean": True,
        "parameter_groups": [{"pattern": "bias$", "frozen": True}],
        "schedule": {"name": "StepLR", "step_size": 3, "warmup": {"steps": 2}},
        "clip_grad_norm": 1.0,
        "clip_grad_value": 0.5,
        "precision": "float16",
        "grad_scaler": {"growth_interval": 5},
        "non_finite": "skip",
        "sync": "all_reduce",
        "sync_batch_norm": True,
        "eval_modules": ["^backbone$"],
        "seed": 7,
        "stages": [{"path": "features", "devices": ["cpu:0"]}],
        "output_device": "host",
        "micro_batch": 8,
        "checkpoint_every": 10,
        "checkpoint_every_seconds": 60.0,
        "checkpoint_keep": 5,
        "idle_timeout": 3600.0,
    }
    losses = ["mse", {"name": "l1", "factor": 0.5}]
    trainer = client.create_trainer("fashion", loss=losses, optimizer="SGD", **options)
    info = trainer.info()
    assert info.options == options
    assert info.losses == [{"name": "mse"}, losses[1]]
    with pytest.raises(ValueError):
        info.loss  # noqa: B018
    again = client.create_trainer(
        "fashion", name="again", loss=info.losses, optimizer=info.optimizer, **info.options
    )
    assert again.info().options == options


def test_invalid_option_is_not_sent(server, client):
    with pytest.raises(ValueError, match="sync: unknown value 'mpi'"):
        client.create_trainer("fashion", loss="mse", optimizer="SGD", sync="mpi")
    assert server.received("CreateTrainer") == []


def test_checkpoints_are_saved_listed_and_restored(server, trainer):
    assert trainer.list_checkpoints() == []
    trainer.step(X, Y)
    saved = trainer.save_checkpoint()
    assert saved == braid.Checkpoint(
        name="step-000000001-sequence-000000001", step=1, sequence=1, bytes=1000,
        created=datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, datetime.timezone.utc),
    )
    assert trainer.step(X, Y).durable_sequence == 1
    assert trainer.list_checkpoints() == [saved]
    assert trainer.restore_checkpoint().applied_sequence == 1
    assert trainer.step(X, Y).sequence == 2
    with pytest.raises(braid.NotFound, match="other"):
        trainer.restore_checkpoint("other")


def test_rollback_returns_the_previous_version(server, client):
    assert client.rollback("fashion", 1) == 2
    with pytest.raises(braid.NotFound, match="there are: 1, 2"):
        client.rollback("fashion", 7)
    server.fail("Rollback", grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(braid.Unavailable):
        client.rollback("fashion", 1)


def test_trainers_are_listed_and_deleted(client):
    for name in ("b", "a"):
        client.create_trainer("fashion", name=name, loss="mse", optimizer="SGD")
    assert [info.name for info in client.trainers()] == ["a", "b"]
    client.delete_trainer("a")
    client.trainer("b").delete()
    assert client.trainers() == []


def test_trainer_is_restored_by_name(client, server, trainer):
    """Works for active and expired trainers."""
    trainer.step(X, Y)
    first = trainer.save_checkpoint()
    trainer.step(X, Y)
    trainer.save_checkpoint()
    assert client.restore_trainer("fashion").info().applied_sequence == 2
    restored = client.restore_trainer("fashion", first.name)
    assert restored.step(X, Y).sequence == 2
    assert [request.checkpoint for request in server.received("RestoreCheckpoint")] == [
        "", first.name,
    ]
    with pytest.raises(braid.NotFound):
        client.restore_trainer("other")
