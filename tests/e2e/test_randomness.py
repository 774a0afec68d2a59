"""Dropout: reproducible with a seed, and only in training."""

from __future__ import annotations

import braid
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from e2e.support import training, training_models
from e2e.support.training import Run, classes, new_trainer, on, rows, same_bits

SGD = {"name": "SGD", "lr": 0.1}
ROWS = 10


def run(client: braid.Client, replicas: int, seed: int | None, **options) -> Run:
    batches = [
        ({"input": rows(ROWS, 10, seed=s)}, {"target": classes(ROWS, seed=s)}) for s in range(4)
    ]
    if seed is not None:
        options["seed"] = seed
    return training.run(
        client, "dropout", batches, replicas, loss="cross_entropy", optimizer=SGD, **options
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_same_seed_is_bit_reproducible(trainers: braid.Client, replicas: int) -> None:
    first = run(trainers, replicas, seed=7)
    assert same_bits(first, run(trainers, replicas, seed=7))
    assert not same_bits(first, run(trainers, replicas, seed=8))


class Noisy(torch.nn.Module):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output + torch.randn_like(output), target)


@pytest.mark.parametrize("options", [{}, {"loss_mode": "per_replica"}, {"micro_batch": 2}], ids=str)
def test_random_loss_module_uses_the_seed(trainers: braid.Client, options: dict) -> None:
    """Draws new numbers for every operation and every part of a batch."""
    batch = ({"x": torch.zeros(8, 10).double()}, {"target": torch.zeros(8, 5).double()})
    with_noise = {"loss": torch.jit.script(Noisy()), "optimizer": {"name": "SGD", "lr": 0.0}}

    def losses(seed: int) -> list[float]:
        return training.run(
            trainers, "net", [batch] * 4, 2, seed=seed, **with_noise, **options
        ).losses

    first = losses(7)
    assert losses(7) == first
    assert losses(8) != first
    assert len(set(first)) == len(first)


def test_default_seed_is_0(trainers: braid.Client) -> None:
    assert same_bits(run(trainers, 2, seed=None), run(trainers, 2, seed=0))


def test_dropout_differs_by_operation_row_and_chunk(trainers: braid.Client) -> None:
    """All eight equal rows on two replicas differ, and so do two passes."""
    x = rows(1, 10).repeat(8, 1)
    with new_trainer(
        trainers, "dropout", stages=on(2), loss_mode="client", optimizer=SGD
    ) as trainer:
        outputs = [trainer.forward({"input": x}).outputs["output__0"] for _ in range(2)]
    assert len({row.tobytes() for row in np.concatenate(outputs)}) == 16


def test_evaluation_draws_no_random_numbers(trainers: braid.Client) -> None:
    x = rows(ROWS, 10)
    wanted = training_models.make("dropout").eval()(x).detach()
    with new_trainer(
        trainers, "dropout", stages=on(3), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        first = trainer.forward({"input": x}, mode="train").outputs["output__0"]
        for _ in range(2):
            output = trainer.forward({"input": x}, mode="eval").outputs["output__0"]
            np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-12)
    assert np.abs(first - wanted.numpy()).max() > 0.01


def test_dropped_fraction_is_the_models(trainers: braid.Client) -> None:
    """With p = 0.4, about 60 % of the hidden units remain: those with a gradient in the second layer
    for a loss that sums the outputs."""
    kept = []
    with new_trainer(
        trainers,
        "dropout",
        stages=on(2),
        loss_mode="client",
        optimizer={"name": "SGD", "lr": 1.0},
    ) as trainer:
        before = trainer.state_dict()["3.weight"]
        for _ in range(40):
            trainer.forward({"input": rows(1, 10)}, keep_graph=True)
            trainer.backward({"output__0": np.ones((1, 5))})
            trainer.optim_step()
            after = trainer.state_dict()["3.weight"]
            kept.append((before != after)[0])
            before = after
    # Five standard deviations of 1280 draws.
    assert np.mean(kept) == pytest.approx(0.6, abs=0.07)
