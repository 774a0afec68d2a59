"""Learning rate schedules on the server equal PyTorch's, in every reply's learning rate and in the
resulting weights."""

from __future__ import annotations

import braid
import numpy as np
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference
from e2e.support.training import MANY_STEPS, batches, new_trainer, on, rows

STEPS = 40
ROWS = 5
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9}
ADAM = {"name": "AdamW", "lr": 0.01}
GROUPS = [{"pattern": "bias", "lr": 0.02}]
CYCLE = {"name": "OneCycleLR", "max_lr": 0.2, "total_steps": STEPS}
PLATEAU = {"name": "ReduceLROnPlateau", "patience": 2, "factor": 0.5}

SCHEDULES = {
    "StepLR": {"name": "StepLR", "step_size": 7},
    "StepLR gamma": {"name": "StepLR", "step_size": 3, "gamma": 0.9},
    "MultiStepLR": {"name": "MultiStepLR", "milestones": [4, 20]},
    "MultiStepLR gamma": {"name": "MultiStepLR", "milestones": [4, 4, 9, 30], "gamma": 0.5},
    "ExponentialLR": {"name": "ExponentialLR", "gamma": 0.93},
    "CosineAnnealingLR": {"name": "CosineAnnealingLR", "T_max": STEPS},
    # Down, up and down again: the schedule continues beyond T_max.
    "CosineAnnealingLR eta_min": {"name": "CosineAnnealingLR", "T_max": 13, "eta_min": 0.03},
    "OneCycleLR": CYCLE,
    "OneCycleLR linear": {**CYCLE, "anneal_strategy": "linear", "pct_start": 0.4},
    "OneCycleLR three phases": {**CYCLE, "three_phase": True},
    "OneCycleLR factors": {**CYCLE, "div_factor": 10.0, "final_div_factor": 50.0},
    "OneCycleLR momenta": {**CYCLE, "base_momentum": 0.5, "max_momentum": 0.8},
    "OneCycleLR momentum stays": {**CYCLE, "cycle_momentum": False},
    "warm-up alone": {"warmup": {"steps": 10}},
    "warm-up, CosineAnnealingLR": {
        "name": "CosineAnnealingLR",
        "T_max": 20,
        "warmup": {"steps": 8, "start_factor": 0.1},
    },
    "warm-up, StepLR": {"name": "StepLR", "step_size": 5, "warmup": {"steps": 5}},
    "warm-up, MultiStepLR": {
        "name": "MultiStepLR",
        "milestones": [6, 12],
        "warmup": {"steps": 6, "start_factor": 1.0},
    },
}


def compare(
    client: braid.Client, optimizer: dict, schedule: dict, steps: int = STEPS, **options
) -> None:
    wanted = Reference("net", optimizer, "cross_entropy", GROUPS, schedule)
    lrs = []
    actual = []
    with new_trainer(
        client,
        "net",
        stages=on(2),
        loss="cross_entropy",
        optimizer=optimizer,
        parameter_groups=GROUPS,
        schedule=schedule,
        **options,
    ) as trainer:
        for batch in batches(steps, ROWS):
            lrs.append(wanted.stepper.param_groups[0]["lr"])
            assert trainer.info().lr == pytest.approx(lrs[-1], rel=1e-9)
            actual.append(trainer.step(*batch).lr)
            wanted.step(*batch)
        np.testing.assert_allclose(actual, lrs, rtol=1e-9)
        training.assert_state(trainer, wanted, MANY_STEPS)
    # Checks that the schedule changed something; otherwise equality would prove little.
    assert max(lrs) > 1.5 * min(lrs)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
@pytest.mark.filterwarnings("ignore:.*epoch parameter")
@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["SGD", "AdamW"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_equals_pytorch(
    trainers: braid.Client, name: str, optimizer: dict
) -> None:
    compare(trainers, optimizer, SCHEDULES[name])


def test_one_cycle_schedule_ends(trainers: braid.Client) -> None:
    batch = batches(1, ROWS)[0]
    with new_trainer(
        trainers,
        "net",
        loss="cross_entropy",
        optimizer=SGD,
        schedule={**CYCLE, "total_steps": 3},
    ) as trainer:
        for _ in range(3):
            trainer.step(*batch)
        before = trainer.state_dict()
        for operate in (trainer.step, lambda *_: trainer.optim_step()):
            with pytest.raises(braid.FailedPrecondition, match="ended, after 3 updates"):
                operate(*batch)
        training.assert_unchanged(before, trainer.state_dict())
        assert trainer.forward(*batch).sequence == 4


PLATEAUS = {
    "defaults": {"name": "ReduceLROnPlateau"},
    "patience": PLATEAU,
    "cooldown": {**PLATEAU, "cooldown": 3, "patience": 1},
    "min_lr": {**PLATEAU, "min_lr": 0.02, "factor": 0.3},
    "absolute": {**PLATEAU, "threshold_mode": "abs", "threshold": 0.05},
    "relative": {**PLATEAU, "threshold": 0.2},
    "max": {**PLATEAU, "mode": "max"},
    "max absolute": {**PLATEAU, "mode": "max", "threshold_mode": "abs", "threshold": 0.3},
    "eps": {**PLATEAU, "eps": 0.03},
}


@pytest.mark.parametrize("name", PLATEAUS)
def test_plateau_on_the_loss_equals_pytorch(trainers: braid.Client, name: str) -> None:
    compare(trainers, SGD, PLATEAUS[name])


@pytest.mark.parametrize("name", PLATEAUS)
def test_plateau_on_the_clients_metric_equals_pytorch(trainers: braid.Client, name: str) -> None:
    """The metric comes with every fourth update; the loss is ignored then."""
    metrics = [5.0, 4.0, 4.2, 4.1, 3.99, 3.99, 4.5, 4.5, 6.0, 7.0, 2.0, 2.0]
    lrs, wanted_lrs = [], []
    wanted = Reference("net", SGD, "cross_entropy", GROUPS, PLATEAUS[name])
    with new_trainer(
        trainers,
        "net",
        stages=on(2),
        loss="cross_entropy",
        optimizer=SGD,
        parameter_groups=GROUPS,
        schedule=PLATEAUS[name],
    ) as trainer:
        for step, batch in enumerate(batches(4 * len(metrics), ROWS)):
            metric = metrics[step // 4] if step % 4 == 0 else None
            wanted_lrs.append(wanted.stepper.param_groups[0]["lr"])
            lrs.append(trainer.step(*batch, metric=metric).lr)
            wanted.accumulate(*batch)
            wanted.stepper.step()
            wanted.stepper.zero_grad()
            if metric is not None:
                wanted.scheduler.step(metric)
        np.testing.assert_allclose(lrs, wanted_lrs, rtol=1e-9)
        training.assert_state(trainer, wanted, MANY_STEPS)


def test_plateau_counts_a_metric_sent_with_a_skipped_update(
    trainers: braid.Client,
) -> None:
    """Like a loop that calls scheduler.step(metric) even if GradScaler skipped the update."""
    schedule = {**PLATEAU, "patience": 0}
    wanted = Reference("net", SGD, "cross_entropy", (), schedule)
    inputs, targets = batches(1, ROWS)[0]
    bad = {"x": inputs["x"] * float("nan")}
    lrs, wanted_lrs = [], []
    with new_trainer(
        trainers,
        "net",
        loss="cross_entropy",
        optimizer=SGD,
        schedule=schedule,
        stages=on(2),
        non_finite="skip",
    ) as trainer:
        for given, metric in ((inputs, 1.0), (bad, 5.0), (inputs, 0.5), (bad, 5.0), (inputs, 0.4)):
            assert trainer.step(given, targets, metric=metric).skipped == (given is bad)
            lrs.append(trainer.info().lr)
            if given is not bad:
                wanted.accumulate(given, targets)
                wanted.stepper.step()
                wanted.stepper.zero_grad()
            wanted.scheduler.step(metric)
            wanted_lrs.append(wanted.stepper.param_groups[0]["lr"])
        training.assert_state(trainer, wanted, MANY_STEPS)
    assert wanted_lrs == [0.1, 0.05, 0.05, 0.025, 0.025]
    np.testing.assert_allclose(lrs, wanted_lrs, rtol=1e-9)


@pytest.mark.parametrize("accumulates", [False, True], ids=["step", "optim_step"])
def test_plateau_drops_losses_of_an_overflowed_update(
    trainers: braid.Client, accumulates: bool
) -> None:
    """They are dropped with the gradients. The next mean covers only the next update's batches."""
    schedule = {**PLATEAU, "patience": 0, "threshold": 0.0}
    inputs = {"x": rows(ROWS, 10).float()}
    # Each loss is lower than the one before, except the one that overflows.
    values = [20.0, 3e4, 19.0, 18.0, 17.0]
    with new_trainer(
        trainers,
        "float32",
        loss="mse",
        optimizer={"name": "SGD", "lr": 1e-6},
        schedule={**schedule, "eps": 0.0},
        precision="float16",
        grad_scaler={"init_scale": 1024.0},
        stages=on(2),
    ) as trainer:
        for value in values:
            targets = {"target": torch.full((ROWS, 5), value)}
            if accumulates:
                trainer.forward_backward(inputs, targets)
                result = trainer.optim_step()
            else:
                result = trainer.step(inputs, targets)
            assert result.skipped == (value == 3e4)
        assert trainer.info().lr == 1e-6


def test_plateau_uses_means_over_an_interval(trainers: braid.Client) -> None:
    """Uses the mean loss of three updates with two batches each."""
    schedule = {**PLATEAU, "patience": 0, "threshold": 0.1, "interval": 3}
    plain = {key: value for key, value in schedule.items() if key != "interval"}
    wanted = Reference("net", SGD, "cross_entropy", (), plain)
    losses: list[float] = []
    lrs, wanted_lrs = [], []
    with new_trainer(
        trainers, "net", loss="cross_entropy", optimizer=SGD, schedule=schedule, stages=on(2)
    ) as trainer:
        for update in range(24):
            of_update = []
            for batch in batches(2, ROWS + update % 3):
                trainer.forward_backward(*batch)
                of_update.append(wanted.accumulate(*batch))
            wanted_lrs.append(wanted.stepper.param_groups[0]["lr"])
            lrs.append(trainer.optim_step().lr)
            wanted.stepper.step()
            wanted.stepper.zero_grad()
            losses.append(sum(of_update) / 2)
            if len(losses) == 3:
                wanted.scheduler.step(sum(losses) / 3)
                losses = []
        np.testing.assert_allclose(lrs, wanted_lrs, rtol=1e-9)
        training.assert_state(trainer, wanted, MANY_STEPS)
    assert lrs[-1] < lrs[0]


def test_schedule_counts_only_updates(trainers: braid.Client) -> None:
    """Accumulated batches, forward passes and evaluations do not advance it."""
    batch = batches(1, ROWS)[0]
    schedule = {"name": "StepLR", "step_size": 1, "gamma": 0.5}
    with new_trainer(
        trainers, "net", loss="cross_entropy", optimizer=SGD, schedule=schedule
    ) as trainer:
        for lr in (0.1, 0.05, 0.025):
            trainer.forward(*batch)
            trainer.evaluate([batch], metrics=())
            trainer.forward_backward(*batch)
            trainer.forward_backward(*batch)
            assert trainer.info().lr == pytest.approx(lr)
            assert trainer.optim_step().lr == pytest.approx(lr)


def test_client_driven_schedule_equals_pytorch(trainers: braid.Client) -> None:
    """lr= and group_lr= come from PyTorch's scheduler, step by step."""
    wanted = Reference("net", SGD, "cross_entropy", GROUPS, SCHEDULES["CosineAnnealingLR"])
    with new_trainer(
        trainers,
        "net",
        stages=on(2),
        loss="cross_entropy",
        optimizer=SGD,
        parameter_groups=GROUPS,
    ) as trainer:
        for batch in batches(STEPS, ROWS):
            rest, bias = wanted.stepper.param_groups
            step = trainer.step(*batch, lr=rest["lr"], group_lr=[bias["lr"]])
            assert step.lr == rest["lr"]
            wanted.step(*batch)
        training.assert_state(trainer, wanted, MANY_STEPS)
