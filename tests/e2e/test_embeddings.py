"""Embeddings: integer inputs with one or several indices per row, dense and sparse gradients."""

from __future__ import annotations

import braid
import numpy as np
import pytest
import torch
from e2e.support import training
from e2e.support.reference import Reference
from e2e.support.training import MANY_STEPS, new_trainer, on, rows

STEPS = 6
ROWS = 6
OPTIMIZERS = {
    "SGD": {"name": "SGD", "lr": 0.1},
    "momentum": {"name": "SGD", "lr": 0.1, "momentum": 0.9},
    "Adagrad": {"name": "Adagrad", "lr": 0.1},
    "Adam": {"name": "Adam", "lr": 0.05},
}


def words(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Some words are in several rows and chunks."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1000, (count, *shape), generator=generator)
    return torch.where(drawn % 3 == 0, drawn % 5, drawn)


def batches(model: str) -> list:
    shape = (4,) if model in ("sentences", "bags", "sparse_bags", "scaled_bags") else ()
    wanted = (4, 5) if model == "sentences" else (5,)
    return [
        ({"words": words(ROWS, *shape, seed=s)}, {"target": rows(ROWS, *wanted, seed=s)})
        for s in range(STEPS)
    ]


def densely(reference: Reference) -> Reference:
    """Uses dense gradients like the server: Adam and momentum do not support sparse ones."""
    for module in reference.module.modules():
        if hasattr(module, "sparse"):
            module.sparse = False
    return reference


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["words", "sparse_words", "sentences", "bags", "sparse_bags"])
def test_embedding_training_equals_pytorch(
    trainers: braid.Client, model: str, optimizer: str, replicas: int
) -> None:
    wanted = densely(Reference(model, OPTIMIZERS[optimizer], "mse")).train(batches(model))
    actual = training.run(
        trainers, model, batches(model), replicas, loss="mse", optimizer=OPTIMIZERS[optimizer]
    )
    training.assert_equal_runs(actual, wanted, MANY_STEPS)


@pytest.mark.parametrize("model", ["words", "sparse_words", "sparse_bags"])
def test_embedding_gradients_accumulate_and_are_clipped(
    trainers: braid.Client, model: str
) -> None:
    optimizer = OPTIMIZERS["SGD"]
    wanted = densely(Reference(model, optimizer, "mse"))
    with new_trainer(
        trainers, model, stages=on(3), loss="mse", optimizer=optimizer, clip_grad_norm=0.05
    ) as trainer:
        for batch in batches(model):
            trainer.forward_backward(*batch)
            wanted.accumulate(*batch)
        norm = trainer.optim_step().gradient_norm
        wanted_norm = torch.nn.utils.clip_grad_norm_(wanted.module.parameters(), 0.05)
        assert norm == pytest.approx(wanted_norm.item(), rel=1e-9)
        wanted.update()
        training.assert_state(trainer, wanted, MANY_STEPS)


@pytest.mark.parametrize("model", ["scaled_words", "scaled_bags"])
def test_frequency_scaled_embedding_equals_pytorch_on_one_replica(
    trainers: braid.Client, model: str
) -> None:
    optimizer = OPTIMIZERS["SGD"]
    wanted = Reference(model, optimizer, "mse").train(batches(model))
    actual = training.run(trainers, model, batches(model), 1, loss="mse", optimizer=optimizer)
    training.assert_equal_runs(actual, wanted, MANY_STEPS)


@pytest.mark.parametrize(
    "options, field",
    [
        ({"stages": on(2)}, r"stages\[0\].devices: 2 devices divide a batch"),
        ({}, r"stages\[0\].devices: 4 devices divide a batch"),
        ({"stages": on(1), "micro_batch": 2}, "micro_batch: 2 rows divide a batch"),
    ],
)
@pytest.mark.parametrize(
    "model, weight", [("scaled_words", "embedding.weight"), ("scaled_bags", "bag.weight")]
)
def test_frequency_scaled_embedding_is_rejected_if_batches_are_split(
    trainers: braid.Client, model: str, weight: str, options: dict, field: str
) -> None:
    with pytest.raises(braid.FailedPrecondition, match=field) as refused:
        trainers.create_trainer(model, loss="mse", optimizer=OPTIMIZERS["SGD"], **options)
    assert f"the gradient of '{weight}' depends on how often" in refused.value.message


@pytest.mark.parametrize("model, weight", [("scaled_words", "embedding"), ("scaled_bags", "bag")])
def test_frozen_frequency_scaled_embedding_trains_on_several_replicas(
    trainers: braid.Client, model: str, weight: str
) -> None:
    training.compare(
        trainers,
        model,
        batches(model),
        OPTIMIZERS["SGD"],
        "mse",
        groups=[{"pattern": weight, "frozen": True}],
    )


def test_one_dimensional_indices_are_rows(trainers: braid.Client) -> None:
    """[B] is split like any batch, and only the weights of words in the batch change."""
    spoken = torch.tensor([5, 7, 5, 999, 0, 5])
    with new_trainer(
        trainers, "words", stages=on(3), loss="mse", optimizer=OPTIMIZERS["SGD"]
    ) as trainer:
        before = trainer.state_dict()["embedding.weight"]
        step = trainer.step({"words": spoken}, {"target": rows(6, 5)}, report_split=True)
        after = trainer.state_dict()["embedding.weight"]
    assert [chunk.input_shapes for chunk in step.chunks] == [((2,),)] * 3
    assert set(np.flatnonzero((before != after).any(1))) == {0, 5, 7, 999}
