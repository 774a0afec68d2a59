"""Trainers as resources, splitting of batches, and hyperparameters of a single update."""

from __future__ import annotations

import os
from collections.abc import Callable

import braid
import grpc
import pytest
import torch
from e2e.support import models, oracle, training
from e2e.support.server import Server

SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}


def connect(serve: Callable[[str], Server], replicas: int = 2) -> braid.Client:
    return braid.connect(serve(f"cpu*{replicas}").address)


@pytest.mark.parametrize(
    ("rows", "replicas"), [(30, 3), (5, 4), (20, 3), (1, 4), (2, 4), (97, 4), (7, 1), (256, 2)]
)
def test_reported_split_equals_torch_chunk(
    serve: Callable[[str], Server], rows: int, replicas: int
) -> None:
    wanted = [len(chunk) for chunk in torch.chunk(torch.zeros(rows), replicas)]
    x, labels = oracle.dataset("chain", rows)
    with connect(serve, replicas) as client, training.new_trainer(
        client, "chain", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        results = [
            trainer.step({"x": x}, {"target": labels}, report_split=True),
            trainer.forward_backward({"x": x}, {"target": labels}, report_split=True),
            trainer.forward({"x": x}, report_split=True),
        ]
        silent = trainer.forward({"x": x})
    devices = [f"cpu:{i}" for i in range(len(wanted))]
    for result in results:
        assert [chunk.rows for chunk in result.chunks] == wanted
        assert [chunk.device for chunk in result.chunks] == devices
    assert silent.chunks == ()


def test_hyperparameters_apply_to_one_update(serve: Callable[[str], Server]) -> None:
    """They override the optimizer's for that update only."""
    overrides = [{}, {"lr": 0.01}, {"lr": 0.0}, {"momentum": 0.5, "weight_decay": 0.1}, {}]
    x, labels = oracle.dataset("chain64", 20)
    module = models.make("chain64")
    stepper = oracle.make_optimizer(module, SGD)
    own = dict(stepper.param_groups[0])
    with connect(serve) as client, training.new_trainer(
        client, "chain64", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        for override in overrides:
            trainer.step({"x": x}, {"target": labels}, **override)
            stepper.param_groups[0].update({**own, **override})
            stepper.zero_grad()
            oracle.LOSSES["cross_entropy"](module(x), labels).backward()
            stepper.step()
        actual = oracle.Run([], trainer.state_dict())
        assert trainer.info().optimizer == SGD
    oracle.assert_equal_runs(actual, oracle.Run([], oracle.state_of(module)), 1e-12)


def test_new_trainer_has_the_models_weights(serve: Callable[[str], Server]) -> None:
    with connect(serve, 3) as client:
        trainer = client.create_trainer(
            "convnet", name="created", loss="cross_entropy", optimizer=SGD
        )
        info = trainer.info()
        state = trainer.state_dict()
        names = [listed.name for listed in client.trainers()]
        trainer.delete()
        assert "created" not in [listed.name for listed in client.trainers()]
        with pytest.raises(braid.BraidError) as caught:
            client.trainer("created")
    assert caught.value.code == grpc.StatusCode.NOT_FOUND
    assert names == sorted(names)
    assert "created" in names
    assert (info.name, info.model, info.base_version) == ("created", "convnet", 1)
    assert info.devices == ("cpu:0", "cpu:1", "cpu:2")
    assert (info.step, info.applied_sequence, info.accumulated) == (0, 0, 0)
    wanted = oracle.state_of(models.make("convnet"))
    # Parameters and buffers in the module's order.
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        assert state[name].dtype == value.dtype
        assert state[name].tobytes() == value.tobytes(), name


def test_default_name_is_the_models(serve: Callable[[str], Server]) -> None:
    with connect(serve) as client:
        trainer = client.create_trainer("two_inputs", loss="mse", optimizer="AdamW")
        assert trainer.name == "two_inputs"
        trainer.delete()


def test_second_handle_continues_after_the_first(serve: Callable[[str], Server]) -> None:
    x, labels = oracle.dataset("chain", 20)
    with connect(serve) as client, training.new_trainer(
        client, "chain", loss="cross_entropy", optimizer=SGD
    ) as trainer:
        trainer.step({"x": x}, {"target": labels})
        other = client.trainer(trainer.name)
        assert other.step({"x": x}, {"target": labels}).step == 2


def test_trainers_are_independent(serve: Callable[[str], Server]) -> None:
    """Alternating steps of two trainers of one model give the same results as separate training."""
    specs = [SGD, {"name": "AdamW", "lr": 0.01}]
    batches = list(oracle.batches_of("chain64", "cross_entropy", 20, steps=10))
    with connect(serve) as client:
        trainers = [
            client.create_trainer(
                "chain64", name=f"turn-{i}", loss="cross_entropy", optimizer=spec
            )
            for i, spec in enumerate(specs)
        ]
        losses = [[t.step({"x": x}, {"target": y}).loss for t in trainers] for x, y in batches]
        states = [trainer.state_dict() for trainer in trainers]
        for trainer in trainers:
            trainer.delete()
    for i, spec in enumerate(specs):
        wanted = oracle.train(models.make("chain64"), batches, spec, "cross_entropy")
        actual = oracle.Run([pair[i] for pair in losses], states[i])
        oracle.assert_equal_runs(actual, wanted, 1e-9)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_existing_trainer_has_the_same_arguments(
    serve: Callable[[str], Server], optimizer: str
) -> None:
    """The server fills in its defaults before it compares."""
    schedules = {
        "SGD": {"name": "StepLR", "step_size": 3, "warmup": {"steps": 2}},
        "Adam": {"name": "MultiStepLR", "milestones": [2, 4]},
        "AdamW": {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 9},
        "RMSprop": "ReduceLROnPlateau",
        "Adagrad": None,
    }
    arguments = {
        "loss": {"SGD": "smooth_l1", "Adam": "huber"}.get(optimizer, "mse"),
        "optimizer": optimizer,
        "schedule": schedules[optimizer],
        "clip_grad_norm": 1.0,
        "parameter_groups": [{"pattern": "bias", "lr": 0.5}],
        "precision": "float16" if optimizer == "AdamW" else None,
    }
    with connect(serve) as client, training.new_trainer(client, "chain", **arguments) as trainer:
        again = {**arguments, "name": trainer.name, "exist_ok": True}
        assert client.create_trainer("chain", **again).name == trainer.name
        with pytest.raises(braid.AlreadyExists, match=r"optimizer\.\w+\.lr is .*, requested 0\.25"):
            client.create_trainer("chain", **{**again, "optimizer": {"name": optimizer, "lr": 0.25}})


def test_trainers_that_nobody_uses_have_no_threads(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("chain",))

    def threads() -> int:
        return len(os.listdir(f"/proc/{server.process.pid}/task"))

    x, labels = oracle.dataset("chain", 8)
    with braid.connect(server.address) as client:

        def train(name: str) -> None:
            trainer = client.create_trainer(
                "chain", name=name, loss="cross_entropy", optimizer=SGD
            )
            trainer.step({"x": x}, {"target": labels})
            trainer.save_checkpoint()

        train("first")
        before = threads()
        for index in range(40):
            train(f"other{index}")
        assert threads() - before < 10
    server.stop()
