"""Mixed precision equals torch.autocast, and loss scaling torch.amp.GradScaler."""

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
    """Returns the run and the scale after every step."""
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
def test_one_replica_equals_autocast(trainers: braid.Client, precision: str) -> None:
    """Products are rounded alike, so only the order of float32 sums differs."""
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
    # Differs from float32 training.
    plain = training.run(trainers, "float32", batches(), 1, loss="cross_entropy", optimizer=SGD)
    assert np.abs(np.subtract(plain.losses, wanted.losses)).max() > 1e-5


@pytest.mark.parametrize("mode", ["central", "per_replica"])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("precision", TYPES)
def test_several_replicas_are_close_to_autocast(
    trainers: braid.Client, precision: str, replicas: int, mode: str
) -> None:
    """Each replica rounds a weight's gradient to half precision before the sum. On the whole batch
    it is rounded once. Of gradients below 0.3, bfloat16's 8 bits lose 0.3 / 2⁸ ≈ 1e-3. Ten steps of
    lr 0.05 with momentum, which multiplies by up to ten, differ by less than 5e-3."""
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


def test_weights_outputs_and_losses_keep_their_dtype(trainers: braid.Client) -> None:
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
    # Computed in bfloat16: the lower half of every float32 is zero.
    assert not (output.view(np.uint32) & 0xFFFF).any()


SCALER = {"init_scale": 2.0**21, "growth_interval": 3, "growth_factor": 2.0}


def test_overflow_is_skipped_and_reduces_the_scale(trainers: braid.Client) -> None:
    """A scale that overflows float16 is halved until it fits, and grows again later."""
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
    """At first the loss gradient itself overflows. On several replicas, smaller sums than the whole
    batch's may fit when that does not."""
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
        # float16 has 11 bits, for gradients below 1.
        np.testing.assert_allclose(twice[name], value, rtol=0, atol=0.05 * 2.0**-10)
