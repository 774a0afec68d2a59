"""Gradient clipping, gradient accumulation, and parameters that do not affect the loss."""

from __future__ import annotations

import braid
import numpy as np
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference
from e2e.support.training import MANY_STEPS, batches, classes, new_trainer, on, rows

STEPS = 10
ROWS = 11
SGD = {"name": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}
SYNCS = pytest.mark.parametrize("sync", ["reduce_broadcast", "all_reduce"])


def clip_norm(reference: Reference, max_norm: float, norm_type: float = 2.0) -> float:
    parameters = reference.module.parameters()
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type).item()


@SYNCS
@pytest.mark.parametrize("replicas", [1, 3, 4])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, np.inf, 3.0])
@pytest.mark.parametrize("max_norm", [0.05, 0.2])
def test_clipping_by_norm_equals_pytorch(
    trainers: braid.Client, max_norm: float, norm_type: float, replicas: int, sync: str
) -> None:
    """Clips one norm over all parameters of the whole batch's gradients and reports it."""
    wanted = Reference("net", SGD, "cross_entropy")
    clip = {"max_norm": max_norm, "norm_type": norm_type}
    norms, wanted_norms = [], []
    with new_trainer(
        trainers,
        "net",
        stages=on(replicas),
        loss="cross_entropy",
        optimizer=SGD,
        clip_grad_norm=clip if norm_type != 2 else max_norm,
        sync=sync,
    ) as trainer:
        for batch in batches(STEPS, ROWS):
            norms.append(trainer.step(*batch).gradient_norm)
            wanted.accumulate(*batch)
            wanted_norms.append(clip_norm(wanted, max_norm, norm_type))
            wanted.update()
        np.testing.assert_allclose(norms, wanted_norms, rtol=1e-9)
        training.assert_state(trainer, wanted, MANY_STEPS)
    assert max(wanted_norms) > max_norm


@SYNCS
@pytest.mark.parametrize("with_norm", [False, True])
def test_clipping_by_value_follows_clipping_by_norm(
    trainers: braid.Client, with_norm: bool, sync: str
) -> None:
    wanted = Reference("net", SGD, "cross_entropy")
    options = {"clip_grad_norm": 0.3} if with_norm else {}
    with new_trainer(
        trainers,
        "net",
        stages=on(3),
        loss="cross_entropy",
        optimizer=SGD,
        clip_grad_value=0.02,
        sync=sync,
        **options,
    ) as trainer:
        for batch in batches(STEPS, ROWS):
            assert (trainer.step(*batch).gradient_norm is not None) == with_norm
            wanted.accumulate(*batch)
            if with_norm:
                clip_norm(wanted, 0.3)
            gradients = torch.cat([p.grad.flatten() for p in wanted.module.parameters()])
            assert gradients.abs().max() > 0.02
            torch.nn.utils.clip_grad_value_(wanted.module.parameters(), 0.02)
            wanted.update()
        training.assert_state(trainer, wanted, MANY_STEPS)


def test_norm_excludes_frozen_parameters(trainers: braid.Client) -> None:
    groups = [{"pattern": "weight", "frozen": True}]
    wanted = Reference("net", SGD, "cross_entropy", groups)
    batch = batches(1, ROWS)[0]
    with new_trainer(
        trainers,
        "net",
        stages=on(3),
        loss="cross_entropy",
        optimizer=SGD,
        clip_grad_norm=1e-3,
        parameter_groups=groups,
    ) as trainer:
        norm = trainer.step(*batch).gradient_norm
        wanted.accumulate(*batch)
        assert norm == pytest.approx(clip_norm(wanted, 1e-3), rel=1e-12)
        wanted.update()
        training.assert_state(trainer, wanted, 1e-12)


@SYNCS
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_gradient_accumulation_equals_pytorch(
    trainers: braid.Client, replicas: int, clip: float | None, sync: str
) -> None:
    """Accumulates batches of several sizes, one smaller than the number of replicas, then updates
    once. Clipping applies to the sum. A step adds to accumulated gradients."""
    wanted = Reference("net", SGD, "cross_entropy")
    with new_trainer(
        trainers,
        "net",
        stages=on(replicas),
        loss="cross_entropy",
        optimizer=SGD,
        clip_grad_norm=clip,
        sync=sync,
    ) as trainer:
        for sizes in ([7, 1, 11], [2], [1, 9], [4, 4, 4, 4]):
            *accumulated, last = [batches(1, size)[0] for size in sizes]
            for count, batch in enumerate(accumulated, start=1):
                result = trainer.forward_backward(*batch)
                assert result.loss == pytest.approx(wanted.accumulate(*batch), abs=MANY_STEPS)
                assert trainer.info().accumulated == count
            wanted.accumulate(*last)
            if sizes[0] == 4:
                trainer.forward_backward(*last)
                trainer.optim_step()
            else:
                trainer.step(*last)
            assert trainer.info().accumulated == 0
            if clip is not None:
                clip_norm(wanted, clip)
            wanted.update()
        training.assert_state(trainer, wanted, MANY_STEPS)


def reaching(columns: list[float]) -> torch.Tensor:
    """Returns rows of 6 elements with these values in column 0."""
    x = rows(len(columns), 6, seed=4)
    x[:, 0] = torch.tensor(columns)
    return x


@pytest.mark.not_in("pair", model="branching", reason="its course depends on values")
@SYNCS
@pytest.mark.parametrize(
    "optimizer", [SGD, {"name": "AdamW", "lr": 0.05}], ids=["SGD", "AdamW"]
)
def test_unused_parameters_do_not_change(
    trainers: braid.Client, optimizer: dict, sync: str
) -> None:
    """Including weight decay, momentum and Adam's step count. A parameter is used if any replica
    uses it: of 7 rows on three replicas, rows 3 to 5 belong to the second one."""
    nobody, second = [-1.0] * 7, [-1.0] * 3 + [1.0] + [-1.0] * 3
    first = [1.0] + [-1.0] * 6
    wanted = Reference("branching", optimizer, "cross_entropy")
    layers = ["always", "sometimes", "never"]

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([wanted.module(chunk) for chunk in x.chunk(3)])

    wanted.outputs = lambda inputs: {"output__0": forward(inputs["x"])}
    labels = {"target": classes(7, of=4)}
    with new_trainer(
        trainers,
        "branching",
        stages=on(3),
        loss="cross_entropy",
        optimizer=optimizer,
        sync=sync,
    ) as trainer:
        reached = []
        for columns in (nobody, second, nobody, first, second, nobody):
            before = trainer.state_dict()
            trainer.step({"x": reaching(columns)}, labels)
            after = trainer.state_dict()
            moved = {name for name in after if (before[name] != after[name]).any()}
            reached.append([layer for layer in layers if f"{layer}.bias" in moved])
            wanted.step({"x": reaching(columns)}, labels)
        training.assert_state(trainer, wanted, MANY_STEPS)
    both = layers[:2]
    assert reached == [["always"], both, ["always"], both, both, ["always"]]


@pytest.mark.not_in("pair", model="branching", reason="its course depends on values")
@pytest.mark.parametrize(
    "options", [{}, {"loss_mode": "per_replica"}, {"micro_batch": 2}], ids=str
)
def test_parameters_used_only_by_ignored_targets_are_updated(
    trainers: braid.Client, options: dict
) -> None:
    """The gradient is zero, so weight decay and momentum apply."""
    x = reaching([-1.0, -1.0, 1.0, 1.0])
    labels = {"target": torch.tensor([0, 1, -100, -100])}
    wanted = Reference("branching", SGD, "cross_entropy")
    module = wanted.module
    wanted.outputs = lambda inputs: {
        "output__0": torch.cat([module(chunk) for chunk in inputs["x"].chunk(2)])
    }
    replicas = 1 if "micro_batch" in options else 2
    with new_trainer(
        trainers, "branching", stages=on(replicas), loss="cross_entropy", optimizer=SGD, **options
    ) as trainer:
        for _ in range(2):
            trainer.step({"x": x}, labels)
            wanted.step({"x": x}, labels)
        training.assert_state(trainer, wanted, MANY_STEPS)
    start = Reference("branching", SGD, "cross_entropy").state()["sometimes.bias"]
    assert (wanted.state()["sometimes.bias"] != start).all()


@pytest.mark.not_in("pair", model="branching", reason="its course depends on values")
def test_parameters_used_by_one_accumulated_batch_are_updated(trainers: braid.Client) -> None:
    labels = {"target": classes(4, of=4)}
    wanted = Reference("branching", SGD, "cross_entropy")
    with new_trainer(
        trainers, "branching", stages=on(1), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        for columns in ([-1.0] * 4, [1.0] * 4, [-1.0] * 4):
            trainer.forward_backward({"x": reaching(columns)}, labels)
            wanted.accumulate({"x": reaching(columns)}, labels)
        trainer.optim_step()
        wanted.update()
        # No gradient is left for the next update.
        trainer.step({"x": reaching([-1.0] * 4)}, labels)
        wanted.step({"x": reaching([-1.0] * 4)}, labels)
        training.assert_state(trainer, wanted, MANY_STEPS)
    start = Reference("branching", SGD, "cross_entropy").state()["sometimes.bias"]
    assert (wanted.state()["sometimes.bias"] != start).all()
