"""Mixed precision is torch.autocast's, with torch.amp.GradScaler's scaling for float16."""

from __future__ import annotations

import braid
import numpy as np
import pytest
import torch
from e2e.support import training, training_models
from e2e.support.oracle import Run, assert_equal_runs, state_of
from e2e.support.training import new_trainer, on, rows, classes
from torch.nn import functional

STEPS = 10
ROWS = 12
SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def batches() -> list:
    return [
        ({"x": rows(ROWS, 10, seed=s).float()}, {"target": classes(ROWS, seed=s)})
        for s in range(STEPS)
    ]


def reference(precision: str, scaler: dict | None = None) -> tuple[Run, list[float]]:
    """And the scale after every step."""
    module = training_models.make("float32").train()
    stepper = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    scaling = torch.amp.GradScaler(
        "cpu", enabled=precision == "float16", **(scaler or {})
    )
    losses, scales = [], []
    for inputs, targets in batches():
        with torch.autocast("cpu", dtype=TYPES[precision]):
            output = module(inputs["x"])
        assert output.dtype == TYPES[precision]
        loss = functional.cross_entropy(output.float(), targets["target"])
        stepper.zero_grad()
        scaling.scale(loss).backward()
        scaling.step(stepper)
        scaling.update()
        losses.append(loss.item())
        scales.append(scaling.get_scale())
    return Run(losses, state_of(module)), scales


@pytest.mark.parametrize("precision", TYPES)
def test_one_replica_is_autocast(trainers: braid.Client, precision: str) -> None:
    """The same products are rounded in the same places: what differs is float32's sums alone."""
    wanted, _ = reference(precision)
    actual = training.run(
        trainers,
        "float32",
        batches(),
        1,
        loss="cross_entropy",
        optimizer=SGD,
        precision=precision,
    )
    assert_equal_runs(actual, wanted, 1e-6)
    # It is not float32's training.
    plain = training.run(trainers, "float32", batches(), 1, loss="cross_entropy", optimizer=SGD)
    assert np.abs(np.subtract(plain.losses, wanted.losses)).max() > 1e-5


@pytest.mark.parametrize("mode", ["central", "per_replica"])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("precision", TYPES)
def test_several_replicas_are_near_it(
    trainers: braid.Client, precision: str, replicas: int, mode: str
) -> None:
    """A weight's gradient is rounded to half precision on each replica before the sum, where the
    whole batch's is rounded once: of gradients below 0.3 bfloat16's 8 bits lose 0.3 / 2⁸ ≈ 1e-3, so
    ten steps of lr 0.05, whose momentum adds up to tenfold, differ by less than 5e-3."""
    wanted, _ = reference(precision)
    actual = training.run(
        trainers,
        "float32",
        batches(),
        replicas,
        loss="cross_entropy",
        optimizer=SGD,
        precision=precision,
        loss_mode=mode,
    )
    assert_equal_runs(actual, wanted, 5e-3)


def test_weights_outputs_and_losses_keep_the_models_datatype(trainers: braid.Client) -> None:
    with new_trainer(
        trainers,
        "float32",
        stages=on(2),
        loss="cross_entropy",
        optimizer=SGD,
        precision="bfloat16",
    ) as trainer:
        forward = trainer.forward(*batches()[0])
        trainer.step(*batches()[0])
        assert {value.dtype for value in trainer.state_dict().values()} == {np.dtype(np.float32)}
    output = forward.outputs["output__0"]
    assert output.dtype == np.float32
    # What came was computed in bfloat16: the lower half of every float32 is empty.
    assert not (output.view(np.uint32) & 0xFFFF).any()


SCALER = {"init_scale": 2.0**21, "growth_interval": 3, "growth_factor": 2.0}


def test_overflow_is_skipped_and_the_scale_backs_off(trainers: braid.Client) -> None:
    """A scale that float16 cannot hold is halved until it can; then it grows again."""
    wanted, scales = reference("float16", SCALER)
    falls = [after < before for before, after in zip([SCALER["init_scale"], *scales], scales)]
    assert falls[0] and not all(falls) and max(scales[3:]) > min(scales)
    with new_trainer(
        trainers,
        "float32",
        stages=on(1),
        loss="cross_entropy",
        optimizer=SGD,
        precision="float16",
        grad_scaler=SCALER,
    ) as trainer:
        results = [trainer.step(*batch) for batch in batches()]
        info = trainer.info()
        actual = Run([result.loss for result in results], trainer.state_dict())
    assert [result.skipped for result in results] == falls
    assert [result.lr is None for result in results] == falls
    assert info.skipped == sum(falls)
    assert info.step == STEPS - sum(falls)
    assert_equal_runs(actual, wanted, 1e-6)


@pytest.mark.parametrize("sync", ["reduce_broadcast", "all_reduce"])
def test_overflow_on_any_replica_skips_the_update_on_all(
    trainers: braid.Client, sync: str
) -> None:
    """At first the gradient of the loss itself overflows; on several replicas smaller sums than the
    whole batch's may already fit where that does not."""
    with new_trainer(
        trainers,
        "float32",
        stages=on(3),
        loss="cross_entropy",
        optimizer=SGD,
        precision="float16",
        grad_scaler=SCALER,
        sync=sync,
    ) as trainer:
        before = trainer.state_dict()
        skipped = []
        for batch in batches():
            skipped.append(trainer.step(*batch).skipped)
            if all(skipped):
                training.assert_unchanged(before, trainer.state_dict())
        info = trainer.info()
    assert skipped[0] and not all(skipped)
    assert (info.skipped, info.step) == (sum(skipped), STEPS - sum(skipped))


def test_scaled_gradients_accumulate(trainers: braid.Client) -> None:
    """They are unscaled once, at the update."""
    x, target = batches()[0]
    options = {"loss": "cross_entropy", "optimizer": SGD, "precision": "float16"}
    with new_trainer(trainers, "float32", stages=on(1), **options) as trainer:
        for _ in range(2):
            trainer.forward_backward(x, target)
        trainer.optim_step()
        twice = trainer.state_dict()
    module = training_models.make("float32")
    with torch.autocast("cpu", dtype=torch.float16):
        output = module(x["x"])
    (2 * functional.cross_entropy(output.float(), target["target"])).backward()
    torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9).step()
    for name, value in state_of(module).items():
        # float16's 11 bits of gradients below 1.
        np.testing.assert_allclose(twice[name], value, rtol=0, atol=0.05 * 2.0**-10)
