"""Losses and gradients that are not finite."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import braid
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference
from e2e.support.training import MANY_STEPS, assert_unchanged, new_trainer, on

ADAM = {"name": "Adam", "lr": 0.1, "weight_decay": 0.1}
GOOD = torch.tensor([[1.0, 2, 3], [2, 1, 1], [5, 3, 2], [1, 1, 1]]).double()
TARGET = {"target": torch.zeros(4, 1).double()}
# The gradient of the root is infinite at 0, for one row. Below 0 the root is NaN.
BAD = {
    "gradient": torch.cat([GOOD[:3], torch.zeros(1, 3).double()]),
    "loss": torch.cat([-GOOD[:1], GOOD[1:]]),
}
# For the mean absolute error of the root. The target 0 does not match the root.
LOSS = {"name": "l1"}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest) -> torch.Tensor:
    return BAD[request.param]


def shifted(value: float) -> dict:
    return {"target": TARGET["target"] + value}


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_non_finite_step_fails_without_changes(
    trainers: braid.Client, bad: torch.Tensor, replicas: int
) -> None:
    """Weights, buffers, accumulated gradients and optimizer do not change, and training continues
    as if the step had not been sent."""
    wanted = Reference("root", ADAM, LOSS)
    with new_trainer(
        trainers, "root", stages=on(replicas), loss=LOSS, optimizer=ADAM
    ) as trainer:
        trainer.step({"x": GOOD}, shifted(-1))
        trainer.forward_backward({"x": GOOD}, shifted(-1))
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward):
            with pytest.raises(braid.FailedPrecondition, match="not finite.*not applied"):
                operate({"x": bad}, shifted(-1))
        assert_unchanged(before, trainer.state_dict())
        info = trainer.info()
        assert (info.step, info.accumulated, info.skipped) == (1, 1, 0)
        assert info.applied_sequence == 2
        trainer.step({"x": GOOD}, shifted(-1))
        wanted.step({"x": GOOD}, shifted(-1))
        for _ in range(2):
            wanted.accumulate({"x": GOOD}, shifted(-1))
        wanted.update()
        # The buffer counts forward passes: three were applied.
        wanted.module.calls.fill_(3)
        training.assert_state(trainer, wanted, MANY_STEPS)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_non_finite_step_is_skipped(
    trainers: braid.Client, bad: torch.Tensor, replicas: int
) -> None:
    """The operation counts. Weights and accumulated gradients do not change."""
    wanted = Reference("root", ADAM, LOSS)
    with new_trainer(
        trainers,
        "root",
        stages=on(replicas),
        loss=LOSS,
        optimizer=ADAM,
        non_finite="skip",
        schedule={"name": "StepLR", "step_size": 1, "gamma": 0.5},
    ) as trainer:
        first = trainer.step({"x": GOOD}, shifted(-1))
        assert (first.skipped, first.step, first.lr) == (False, 1, 0.1)
        trainer.forward_backward({"x": GOOD}, shifted(-1))
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward):
            result = operate({"x": bad}, shifted(-1))
            assert (result.skipped, result.step, result.lr) == (True, 1, None)
        assert_unchanged(before, trainer.state_dict())
        info = trainer.info()
        assert (info.step, info.accumulated, info.skipped) == (1, 1, 2)
        assert info.applied_sequence == 4
        # The schedule counts only applied updates.
        assert trainer.optim_step().lr == 0.05
        wanted.step({"x": GOOD}, shifted(-1))
        wanted.accumulate({"x": GOOD}, shifted(-1))
        wanted.stepper.param_groups[0]["lr"] = 0.05
        wanted.update()
        wanted.module.calls.fill_(2)
        training.assert_state(trainer, wanted, MANY_STEPS)


@pytest.mark.parametrize("replicas", [1, 2])
def test_update_with_only_skipped_batches_is_skipped(
    trainers: braid.Client, bad: torch.Tensor, replicas: int
) -> None:
    """Like a skipped Step, so a stream may mix both operations."""
    with new_trainer(
        trainers, "root", stages=on(replicas), loss=LOSS, optimizer=ADAM, non_finite="skip"
    ) as trainer:
        before = trainer.state_dict()
        with trainer.stream() as stream:
            assert stream.forward_backward({"x": bad}, shifted(-1)).result().skipped
            result = stream.optim_step().result()
            assert (result.skipped, result.step, result.lr) == (True, 0, None)
            assert_unchanged(before, trainer.state_dict())
            stream.forward_backward({"x": GOOD}, shifted(-1))
            stream.forward_backward({"x": bad}, shifted(-1))
            assert stream.optim_step().result().step == 1
        info = trainer.info()
        assert (info.step, info.skipped, info.applied_sequence) == (1, 3, 5)
        # No batch was skipped since.
        with pytest.raises(braid.FailedPrecondition, match="no gradients"):
            trainer.optim_step()


def test_non_finite_client_gradient_is_rejected(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "root", stages=on(2), loss_mode="client", optimizer=ADAM
    ) as trainer:
        before = trainer.state_dict()
        outputs = trainer.forward({"x": GOOD}, keep_graph=True).outputs["output__0"]
        with pytest.raises(braid.FailedPrecondition, match=r"output_gradients\[0\] is not finite"):
            trainer.backward({"output__0": outputs * float("nan")})
        after = trainer.state_dict()
        assert (before["weight"] == after["weight"]).all()
        with pytest.raises(braid.FailedPrecondition, match="no gradients"):
            trainer.optim_step()


def test_non_finite_client_gradient_keeps_the_graph(
    trainers: braid.Client,
) -> None:
    with new_trainer(
        trainers, "root", stages=on(2), loss_mode="client", optimizer=ADAM
    ) as trainer:
        outputs = trainer.forward({"x": GOOD}, keep_graph=True).outputs["output__0"]
        with pytest.raises(braid.FailedPrecondition, match="not finite"):
            trainer.backward({"output__0": outputs * float("nan")})
        trainer.backward({"output__0": outputs})
        trainer.optim_step()
        assert trainer.info().step == 1


def new_normed(
    client: braid.Client, replicas: int, **options: Any
) -> AbstractContextManager[braid.Trainer]:
    """A trainer with batch norm and a client loss."""
    return new_trainer(
        client, "normed", stages=on(replicas), loss_mode="client", optimizer=ADAM, **options
    )


def with_infinity_in(*places: int) -> dict:
    x = training.rows(8, 6)
    x[list(places), 0] = float("inf")
    return {"x": x}


def ones_like(outputs: dict) -> dict:
    return {name: torch.ones(each.shape).double() for name, each in outputs.items()}


@pytest.mark.parametrize("sync_batch_norm", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_forward_that_makes_buffers_non_finite_fails(
    trainers: braid.Client, replicas: int, sync_batch_norm: bool
) -> None:
    """Fails immediately and does not change the buffers."""
    with new_normed(trainers, replicas, sync_batch_norm=sync_batch_norm) as trainer:
        trainer.forward(with_infinity_in())
        before = trainer.state_dict()
        for keep_graph in (False, True):
            with pytest.raises(braid.FailedPrecondition, match="a buffer.*not finite"):
                trainer.forward(with_infinity_in(0), keep_graph=keep_graph)
        assert_unchanged(before, trainer.state_dict())
        assert trainer.info().applied_sequence == 1


@pytest.mark.parametrize("sync_batch_norm", [False, True])
@pytest.mark.parametrize("replicas", [1, 2])
def test_non_finite_forward_is_skipped_with_client_loss(
    trainers: braid.Client, replicas: int, sync_batch_norm: bool
) -> None:
    with new_normed(
        trainers, replicas, sync_batch_norm=sync_batch_norm, non_finite="skip"
    ) as trainer:
        trainer.forward(with_infinity_in())
        before = trainer.state_dict()
        outputs = trainer.forward(with_infinity_in(0), keep_graph=True).outputs
        result = trainer.backward(ones_like(outputs))
        assert result.skipped
        assert_unchanged(before, trainer.state_dict())
        info = trainer.info()
        assert (info.applied_sequence, info.skipped, info.accumulated) == (3, 1, 0)
        assert trainer.optim_step().skipped
        outputs = trainer.forward(with_infinity_in(), keep_graph=True).outputs
        assert not trainer.backward(ones_like(outputs)).skipped
        assert trainer.optim_step().step == 1
