"""What a loss or a gradient that is not finite does."""

from __future__ import annotations

import braid
import pytest
import torch
from e2e import training
from e2e.reference import Reference
from e2e.training import MANY_STEPS, assert_unchanged, new_trainer, on

ADAM = {"name": "Adam", "lr": 0.1, "weight_decay": 0.1}
GOOD = torch.tensor([[1.0, 2, 3], [2, 1, 1], [5, 3, 2], [1, 1, 1]]).double()
TARGET = {"target": torch.zeros(4, 1).double()}
# The root's gradient is infinite at 0, of one row; below it is NaN.
BAD = {
    "gradient": torch.cat([GOOD[:3], torch.zeros(1, 3).double()]),
    "loss": torch.cat([-GOOD[:1], GOOD[1:]]),
}
# Of the mean absolute root; the target's 0 is not the root's.
LOSS = {"name": "l1"}


@pytest.fixture(params=BAD)
def bad(request: pytest.FixtureRequest) -> torch.Tensor:
    return BAD[request.param]


def shifted(value: float) -> dict:
    return {"target": TARGET["target"] + value}


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_failing_changes_nothing(
    trainers: braid.Client, bad: torch.Tensor, replicas: int
) -> None:
    """Weights, buffers, accumulated gradients and optimizer stay bit for bit, and training goes on
    as if nothing had been."""
    wanted = Reference("root", ADAM, LOSS)
    with new_trainer(
        trainers, "root", stages=on(replicas), loss=LOSS, optimizer=ADAM
    ) as trainer:
        trainer.step({"x": GOOD}, shifted(-1))
        trainer.forward_backward({"x": GOOD}, shifted(-1))
        before = trainer.state_dict()
        for operate in (trainer.step, trainer.forward_backward):
            with pytest.raises(braid.FailedPrecondition, match="not finite.*nothing has changed"):
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
def test_skipping_leaves_the_batch_out(
    trainers: braid.Client, bad: torch.Tensor, replicas: int
) -> None:
    """The operation counts, the weights stay, and what was accumulated is still there."""
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
        # The schedule counts updates that were made.
        assert trainer.optim_step().lr == 0.05
        wanted.step({"x": GOOD}, shifted(-1))
        wanted.accumulate({"x": GOOD}, shifted(-1))
        wanted.stepper.param_groups[0]["lr"] = 0.05
        wanted.update()
        wanted.module.calls.fill_(2)
        training.assert_state(trainer, wanted, MANY_STEPS)


def test_gradient_of_the_client_that_is_not_finite(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "root", stages=on(2), loss_mode="client", optimizer=ADAM
    ) as trainer:
        before = trainer.state_dict()
        outputs = trainer.forward({"x": GOOD}, keep_graph=True).outputs["output__0"]
        with pytest.raises(braid.FailedPrecondition, match="not finite"):
            trainer.backward({"output__0": outputs * float("nan")})
        after = trainer.state_dict()
        assert (before["weight"] == after["weight"]).all()
        with pytest.raises(braid.FailedPrecondition, match="no gradients"):
            trainer.optim_step()
