"""How a batch is split over the replicas, and how outputs are gathered."""

from __future__ import annotations

import braid
import numpy as np
import pytest
import torch
from e2e.support import reference, training, training_models
from e2e.support.training import new_trainer, on, rows

CLIENT = {"loss_mode": "client", "optimizer": "SGD"}


@pytest.mark.parametrize(
    ("count", "replicas", "split"),
    [
        (30, 3, [10, 10, 10]),
        (5, 4, [2, 2, 1]),
        (20, 3, [7, 7, 6]),
        (1, 4, [1]),
        (9, 4, [3, 3, 3]),
        (4, 2, [2, 2]),
        (7, 1, [7]),
    ],
)
def test_batch_is_split_like_torch_chunk(
    trainers: braid.Client, count: int, replicas: int, split: list[int]
) -> None:
    x = rows(count, 10)
    assert split == [len(chunk) for chunk in x.chunk(replicas)]
    with new_trainer(trainers, "net", stages=on(replicas), **CLIENT) as trainer:
        forward = trainer.forward({"x": x}, report_split=True)
    assert [chunk.rows for chunk in forward.chunks] == split
    assert [chunk.device for chunk in forward.chunks] == [f"cpu:{i}" for i in range(len(split))]


def test_inputs_with_different_row_counts_are_rejected(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "with_loss", loss_mode="model", loss={"output": "loss"}, optimizer="SGD"
    ) as trainer:
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.step({"x": rows(4, 6)}, {"labels": training.classes(5, of=4)})
    for word in ("'x'", "'labels'", "[4, 6]", "[5]"):
        assert word in caught.value.message


def test_split_is_reported_with_shapes(trainers: braid.Client) -> None:
    """30×5 on three devices: inputs of 10×5 and outputs of 10×2 on each, 30×5 and 30×2 overall."""
    x = rows(30, 5)
    with new_trainer(trainers, "line", stages=on(3), **CLIENT) as trainer:
        forward = trainer.forward({"input": x}, report_split=True)
        assert trainer.forward({"input": x}).chunks == ()
    assert forward.outputs["output__0"].shape == (30, 2)
    assert forward.chunks == tuple(
        braid.Chunk(f"cpu:{i}", 10, "", ((10, 5),), ((10, 2),)) for i in range(3)
    )


def test_split_is_reported_for_every_stage(trainers: braid.Client) -> None:
    stages = [
        {"path": "features", "devices": ["cpu:1", "cpu:2", "cpu:3"]},
        {"path": "classifier", "devices": ["cpu:0"]},
    ]
    with new_trainer(
        trainers, "staged", stages=stages, optimizer="SGD", loss="cross_entropy"
    ) as trainer:
        step = trainer.step({"x": rows(7, 10)}, {"target": training.classes(7)}, report_split=True)
    assert step.chunks == (
        braid.Chunk("cpu:1", 3, "features", ((3, 10),), ((3, 6),)),
        braid.Chunk("cpu:2", 3, "features", ((3, 10),), ((3, 6),)),
        braid.Chunk("cpu:3", 1, "features", ((1, 10),), ((1, 6),)),
        braid.Chunk("cpu:0", 7, "classifier", ((7, 6),), ((7, 5),)),
    )


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_nested_outputs_are_gathered_by_name(trainers: braid.Client, replicas: int) -> None:
    """Outputs without rows become a vector with one element per chunk."""
    x = rows(10, 6)
    module = training_models.make("nested")
    chunks = [reference.by_name(module(chunk)) for chunk in x.chunk(replicas)]
    wanted = {
        name: torch.cat([torch.atleast_1d(chunk[name]) for chunk in chunks]) for name in chunks[0]
    }
    with new_trainer(trainers, "nested", stages=on(replicas), **CLIENT) as trainer:
        outputs = trainer.forward({"x": x}).outputs
    assert len(outputs) == 4
    assert sorted(outputs) == sorted(wanted)
    for name, value in wanted.items():
        assert outputs[name].shape == value.shape
        np.testing.assert_allclose(outputs[name], value.detach(), rtol=0, atol=1e-12)
