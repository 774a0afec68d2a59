"""Optimizers, parameter groups, frozen and tied parameters equal PyTorch's over 20 steps."""

from __future__ import annotations

import re

import braid
import numpy as np
import pytest
from e2e.support import training, training_models
from e2e.support.reference import Reference
from e2e.support.training import ONE_STEP, batches, new_trainer, on, rows

STEPS = 20
ROWS = 11
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}

OPTIMIZERS = [
    {"name": "SGD"},
    {"name": "SGD", "lr": 0.1, "weight_decay": 0.01},
    {"name": "SGD", "lr": 0.1, "momentum": 0.9, "dampening": 0.3},
    {"name": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.02, "nesterov": True},
    {"name": "Adam"},
    {"name": "Adam", "lr": 0.02, "betas": (0.7, 0.95), "eps": 1e-4, "weight_decay": 0.1},
    {"name": "Adam", "lr": 0.02, "betas": (0.5, 0.6), "amsgrad": True},
    {"name": "AdamW"},
    {"name": "AdamW", "lr": 0.02, "betas": (0.7, 0.95), "eps": 1e-4, "weight_decay": 0.2},
    {"name": "AdamW", "lr": 0.02, "betas": (0.5, 0.6), "amsgrad": True},
    {"name": "RMSprop"},
    {"name": "RMSprop", "lr": 0.01, "alpha": 0.8, "eps": 1e-3, "weight_decay": 0.1},
    {"name": "RMSprop", "lr": 0.01, "momentum": 0.8},
    {"name": "RMSprop", "lr": 0.01, "centered": True},
    {"name": "RMSprop", "lr": 0.01, "centered": True, "momentum": 0.8, "weight_decay": 0.1},
    {"name": "Adagrad"},
    {
        "name": "Adagrad",
        "lr": 0.05,
        "lr_decay": 0.1,
        "weight_decay": 0.1,
        "initial_accumulator_value": 0.3,
        "eps": 1e-3,
    },
]


@pytest.mark.parametrize("sync", ["reduce_broadcast", "all_reduce"])
@pytest.mark.parametrize(
    "spec", OPTIMIZERS, ids=["-".join([spec["name"], *list(spec)[1:]]) for spec in OPTIMIZERS]
)
def test_optimizer_equals_pytorch(
    trainers: braid.Client, spec: dict, sync: str
) -> None:
    """With defaults and with every parameter."""
    training.compare(trainers, "net", batches(STEPS, ROWS), spec, "cross_entropy", sync=sync)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_other_replica_counts_equal_pytorch(trainers: braid.Client, replicas: int) -> None:
    spec = {"name": "Adam", "lr": 0.02, "amsgrad": True, "weight_decay": 0.01}
    training.compare(
        trainers, "net", batches(STEPS, ROWS), spec, "cross_entropy", replicas=replicas
    )


GROUPS = [
    {"pattern": r"bias$", "lr": 0.3, "weight_decay": 0.0},
    {"pattern": r"^layers\.[02]\.", "momentum": 0.5},
]


@pytest.mark.parametrize(
    ("spec", "groups"),
    [
        ({**SGD, "weight_decay": 0.01}, GROUPS),
        ({"name": "RMSprop", "lr": 0.01, "momentum": 0.8}, GROUPS),
        ({**SGD, "momentum": 0.0}, [{"pattern": "weight", "momentum": 0.9}]),
        ({"name": "AdamW", "lr": 0.01}, GROUPS[:1]),
        ({"name": "Adagrad"}, GROUPS[:1]),
        (SGD, [{"pattern": "layers", "lr": 0.01}, {"pattern": "bias", "lr": 1.0}]),
    ],
    ids=["SGD", "RMSprop", "momentum of a group alone", "AdamW", "Adagrad", "first that fits"],
)
def test_groups_equal_pytorch(trainers: braid.Client, spec: dict, groups: list[dict]) -> None:
    training.compare(
        trainers, "net", batches(STEPS, ROWS), spec, "cross_entropy", groups=groups
    )


@pytest.mark.parametrize(
    "groups",
    [
        [{"pattern": r"^layers\.[02]", "frozen": True}],
        [{"pattern": "weight", "frozen": True}, {"pattern": "bias", "lr": 0.5}],
    ],
    ids=["first layers", "weights"],
)
def test_frozen_parameters_do_not_change(trainers: braid.Client, groups: list[dict]) -> None:
    """Also with weight decay and momentum."""
    spec = {**SGD, "weight_decay": 0.1}
    training.compare(trainers, "net", batches(STEPS, ROWS), spec, "cross_entropy", groups=groups)
    actual = training.run(
        trainers,
        "net",
        batches(3, ROWS),
        optimizer=spec,
        loss="cross_entropy",
        parameter_groups=groups,
    )
    before = training_models.make("net").state_dict()
    kept = {name for name, value in before.items() if np.array_equal(actual.state[name], value)}
    assert kept == {name for name in before if re.search(groups[0]["pattern"], name)}
    assert kept


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_tied_parameters_stay_tied(
    trainers: braid.Client, name: str, replicas: int
) -> None:
    """Both uses contribute to one gradient, and the parameter is updated once."""
    spec = SGD if name == "SGD" else {"name": name, "lr": 0.05, "weight_decay": 0.1}
    target = {"target": rows(ROWS, 6, seed=9)}
    given = [({"x": rows(ROWS, 6, seed=s)}, target) for s in range(STEPS)]
    training.compare(trainers, "tied", given, spec, "mse", replicas=replicas)
    state = training.run(trainers, "tied", given, replicas, optimizer=spec, loss="mse").state
    assert state["encode.weight"].tobytes() == state["decode.weight"].tobytes()


def test_hyperparameters_of_the_client_apply(trainers: braid.Client) -> None:
    """lr= and others apply to all parameters outside groups, and to groups without their own."""
    groups = [{"pattern": "bias", "lr": 0.3}, {"pattern": r"layers\.4", "weight_decay": 0.2}]
    wanted = Reference("net", SGD, "cross_entropy", groups)
    rest, bias, last = wanted.stepper.param_groups
    batch = batches(1, ROWS)[0]
    with new_trainer(
        trainers,
        "net",
        stages=on(3),
        loss="cross_entropy",
        optimizer=SGD,
        parameter_groups=groups,
    ) as trainer:
        assert trainer.step(*batch).lr == 0.1
        wanted.step(*batch)

        assert trainer.step(*batch, lr=0.01, weight_decay=0.05, momentum=0.4).lr == 0.01
        rest.update(lr=0.01, weight_decay=0.05, momentum=0.4)
        bias.update(weight_decay=0.05, momentum=0.4)
        last.update(lr=0.01, momentum=0.4)
        wanted.step(*batch)

        assert trainer.step(*batch, group_lr=[0.7, 0.0]).lr == 0.1
        rest.update(lr=0.1, weight_decay=0, momentum=0.9)
        bias.update(lr=0.7, weight_decay=0, momentum=0.9)
        last.update(lr=0.0, momentum=0.9)
        wanted.step(*batch)
        training.assert_state(trainer, wanted, 10 * ONE_STEP)
        assert trainer.info().lr == 0.1


def test_learning_rates_of_each_updated_group_equal_pytorch(trainers: braid.Client) -> None:
    groups = [
        {"pattern": r"layers\.0", "frozen": True}, {"pattern": "bias", "lr": 0.3},
        {"pattern": r"layers\.4"},
    ]  # fmt: skip
    schedule = {"name": "StepLR", "step_size": 1, "gamma": 0.1}
    wanted = Reference("net", SGD, "cross_entropy", groups, schedule)
    batch = batches(1, ROWS)[0]
    with new_trainer(
        trainers,
        "net",
        stages=on(3),
        loss="cross_entropy",
        optimizer=SGD,
        parameter_groups=groups,
        schedule=schedule,
    ) as trainer:
        for _ in range(3):
            rest, _, bias, last = (group["lr"] for group in wanted.stepper.param_groups)
            rates = pytest.approx({"": rest, "bias": bias, r"layers\.4": last})
            assert trainer.info().lrs == rates
            assert trainer.step(*batch).lrs == rates
            wanted.step(*batch)
        assert trainer.forward(batch[0], mode="train").lrs == {}
    with new_trainer(
        trainers, "net", loss="cross_entropy", optimizer=SGD, parameter_groups=[{"pattern": "."}]
    ) as trainer:
        assert trainer.info().lrs == {".": 0.1}


def test_sgd_step_is_lr_times_gradient(trainers: braid.Client) -> None:
    """p ← p − lr·grad: the ratio of updates equals the ratio of learning rates."""
    batch = batches(1, ROWS)[0]
    before = training_models.make("net").state_dict()

    def moved(lr: float) -> np.ndarray:
        spec = {"name": "SGD", "lr": lr}
        state = training.run(trainers, "net", [batch], optimizer=spec, loss="cross_entropy").state
        moves = [state[name] - value.numpy() for name, value in before.items()]
        return np.concatenate([move.ravel() for move in moves])

    one, three = moved(0.1), moved(0.3)
    assert np.abs(one).max() > 1e-3
    np.testing.assert_allclose(three, 3 * one, rtol=1e-9, atol=1e-15)
