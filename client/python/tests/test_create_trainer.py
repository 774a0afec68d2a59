"""`create_trainer` with `exist_ok` returns the existing trainer if it has the same arguments."""

import grpc
import pytest

import braid

ARGUMENTS = {
    "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
    "optimizer": {"name": "SGD", "lr": 0.1},
    "parameter_groups": [{"pattern": "bias", "lr": 0.2}],
    "checkpoint_every": 1,
}


def create(client, **changes):
    return client.create_trainer("fashion", **{**ARGUMENTS, "exist_ok": True, **changes})


def step(trainer):
    return trainer.step({"x": [[1.0]]}, {"target": [0]})


def test_existing_trainer_continues(server, client):
    first = create(client)
    assert step(first).sequence == 1
    assert step(create(client)).sequence == 2
    with pytest.raises(braid.AlreadyExists, match="exists$"):
        create(client, exist_ok=False)
    assert list(server.trainers) == ["fashion"]


def test_defaults_equal_values_that_are_given(client):
    create(client, optimizer="SGD", loss="cross_entropy", clip_grad_norm=1)
    create(
        client,
        optimizer={"name": "SGD", "lr": 1e-3, "momentum": 0, "nesterov": False},
        loss={"name": "cross_entropy", "factor": 1, "target": "target", "reduction": "mean"},
        clip_grad_norm={"max_norm": 1, "norm_type": 2},
        version=1,
        seed=0,
        checkpoint_keep=3,
    )


@pytest.mark.parametrize("changes, difference", [
    ({"optimizer": {"name": "SGD", "lr": 0.3}}, "optimizer.lr: 0.1 instead of 0.3"),
    ({"optimizer": "SGD"}, "optimizer.lr: 0.1 instead of 0.001"),
    ({"optimizer": {"name": "SGD", "lr": 0.1, "momentum": 0.9}},
     "optimizer.momentum: not set instead of 0.9"),
    ({"optimizer": "AdamW"}, "optimizer.name: 'SGD' instead of 'AdamW'"),
    ({"loss": "cross_entropy"}, "losses[0].label_smoothing: 0.1 instead of not set"),
    ({"parameter_groups": None}, "parameter_groups: [{'pattern': 'bias', 'lr': 0.2}] instead of "
     "not set"),
    ({"parameter_groups": [{"pattern": "bias", "frozen": True}]},
     "parameter_groups[0].frozen: not set instead of True"),
    ({"version": 2}, "version: 1 instead of 2"),
    ({"seed": 7, "sync": "all_reduce"}, "sync: 'auto' instead of 'all_reduce'"),
    ({"schedule": {"name": "StepLR", "step_size": 3}},
     "schedule: not set instead of {'name': 'StepLR', 'step_size': 3, 'gamma': 0.1}"),
])  # fmt: skip
def test_trainer_with_other_arguments_is_an_error(client, changes, difference):
    create(client)
    with pytest.raises(braid.AlreadyExists) as caught:
        create(client, **changes)
    assert str(caught.value) == (
        f"name: trainer 'fashion' exists and differs: {difference} (expected the arguments that it "
        "was created with, or another name)"
    )


def test_trainer_of_another_model_is_an_error(client):
    create(client, name="mine")
    with pytest.raises(braid.AlreadyExists, match="model: 'fashion' instead of 'other'"):
        client.create_trainer("other", name="mine", exist_ok=True, **ARGUMENTS)


def test_expired_trainer_is_restored(server, client):
    step(create(client))
    server.fail("GetTrainer", grpc.StatusCode.NOT_FOUND)
    assert step(create(client)).sequence == 2
    assert len(server.received("RestoreCheckpoint")) == 1


def test_derived_name_must_be_known(server, client):
    with pytest.raises(ValueError, match="name: missing .*'a b'"):
        client.create_trainer("a b", exist_ok=True, **ARGUMENTS)
    assert not server.received("CreateTrainer")
