"""Ways to run a step that give the same result: synchronization methods and micro-batches."""

from __future__ import annotations

import braid
import pytest
import torch
from e2e.support import training
from e2e.support.training import batches, classes, new_trainer, on, rows, same_bits

ROWS = 11
# More steps than the server uses to measure both methods before it chooses one.
STEPS = 24
ADAM = {"name": "AdamW", "lr": 0.02, "amsgrad": True}


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_grad_norm": 0.1, "clip_grad_value": 0.02},
        {"parameter_groups": [{"pattern": "bias", "lr": 0.1}]},
        {"loss_mode": "per_replica", "schedule": {"name": "ExponentialLR", "gamma": 0.9}},
    ],
    ids=["plain", "clipping", "groups", "per_replica"],
)
def test_synchronization_methods_are_bit_identical(
    trainers: braid.Client, options: dict, replicas: int
) -> None:
    runs = [
        training.run(
            trainers,
            "net",
            batches(STEPS, ROWS),
            replicas,
            loss="cross_entropy",
            optimizer=ADAM,
            sync=sync,
            **options,
        )
        for sync in ("reduce_broadcast", "all_reduce", "auto")
    ]
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize(
    "loss",
    [
        {"name": "cross_entropy", "weight": [1.0, 2.0, 0.5, 1.0, 3.0], "ignore_index": 1},
        {"name": "cross_entropy", "reduction": "sum"},
    ],
    ids=["mean", "sum"],
)
def test_micro_batches_equal_the_whole_batch(
    trainers: braid.Client, loss: dict, replicas: int, size: int
) -> None:
    """Equal to one step over the whole batch with one loss, also during accumulation."""
    training.compare(
        trainers,
        "net",
        batches(5, ROWS),
        ADAM,
        loss,
        replicas=replicas,
        micro_batch=size,
    )


@pytest.mark.parametrize("mode", ["central", "per_replica"])
def test_failed_micro_batch_undoes_the_others(trainers: braid.Client, mode: str) -> None:
    """A micro-batch that fails rolls back those before it."""
    good, again = batches(2, ROWS)
    bad = ({"x": good[0]["x"]}, {"target": good[1]["target"].clone()})
    bad[1]["target"][-1] = 5
    wanted = training.Reference("net", ADAM, "cross_entropy")
    with new_trainer(
        trainers,
        "net",
        stages=on(2),
        loss="cross_entropy",
        optimizer=ADAM,
        micro_batch=2,
        loss_mode=mode,
    ) as trainer:
        trainer.forward_backward(*good)
        wanted.accumulate(*good)
        for operate in (trainer.forward_backward, trainer.step):
            with pytest.raises(braid.InvalidArgument, match="class index 5 in row 10"):
                operate(*bad)
        trainer.step(*again)
        wanted.step(*again)
        training.assert_state(trainer, wanted, training.MANY_STEPS)


def test_micro_batches_start_from_the_primarys_buffers(
    trainers: braid.Client,
) -> None:
    """The buffer counts passes. On both replicas, the second pass is number two."""
    with new_trainer(
        trainers, "counted", stages=on(2), loss="mse", optimizer=ADAM, micro_batch=2
    ) as trainer:
        outputs = trainer.forward({"x": rows(8, 3)}, mode="train").outputs["output__0"]
        assert outputs.ravel().tolist() == [1] * 4 + [2] * 4
        result = trainer.step({"x": rows(8, 3)}, {"target": torch.zeros(8, 1).double()})
        assert result.loss == (4 * 3**2 + 4 * 4**2) / 8
        assert trainer.state_dict()["calls"] == 4


def test_micro_batches_have_no_single_row(trainers: braid.Client) -> None:
    """Batch norm has no variance for a single row."""
    with new_trainer(
        trainers, "normed", stages=on(1), loss="mse", optimizer=ADAM, micro_batch=4
    ) as trainer:
        result = trainer.step({"x": rows(9, 6)}, {"target": rows(9, 4)}, report_split=True)
    assert [chunk.rows for chunk in result.chunks] == [3, 3, 3]


def test_micro_batch_is_the_maximum_chunk_size(trainers: braid.Client) -> None:
    with new_trainer(
        trainers, "net", stages=on(2), loss="cross_entropy", optimizer=ADAM, micro_batch=3
    ) as trainer:
        chunks = trainer.step(*batches(1, ROWS)[0], report_split=True).chunks
        outputs = trainer.forward(batches(1, ROWS)[0][0], mode="eval").outputs
    assert [chunk.rows for chunk in chunks] == [3, 3, 3, 2]
    assert outputs["output__0"].shape == (ROWS, 5)


def test_stream_equals_single_calls(trainers: braid.Client) -> None:
    options = {"loss": "cross_entropy", "optimizer": ADAM, "stages": on(2)}
    wanted = training.run(trainers, "net", batches(STEPS, ROWS), **options)
    with new_trainer(trainers, "net", **options) as trainer:
        with trainer.stream(depth=4) as stream:
            futures = [stream.step(*batch) for batch in batches(STEPS, ROWS)]
        losses = [future.result().loss for future in futures]
        assert same_bits(wanted, training.Run(losses, trainer.state_dict()))


def test_step_equals_forward_backward_and_update(trainers: braid.Client) -> None:
    options = {"loss": "cross_entropy", "optimizer": ADAM, "stages": on(3)}
    wanted = training.run(trainers, "net", batches(5, ROWS), **options)
    with new_trainer(trainers, "net", **options) as trainer:
        losses = []
        for batch in batches(5, ROWS):
            losses.append(trainer.forward_backward(*batch).loss)
            trainer.optim_step()
        assert same_bits(wanted, training.Run(losses, trainer.state_dict()))


def test_array_layout_does_not_matter(trainers: braid.Client) -> None:
    """Transposed and sliced arrays, and tensors that require gradients, are sent by value."""
    x, labels = rows(ROWS, 10), classes(ROWS)
    wide = torch.zeros(10, 2 * ROWS, dtype=torch.float64)
    wide[:, ::2] = x.T
    options = {"loss": "cross_entropy", "optimizer": ADAM, "stages": on(2)}
    runs = [
        training.run(trainers, "net", [({"x": given}, {"target": labels})], **options)
        for given in (x, x.numpy(), wide[:, ::2].T, x.clone().requires_grad_())
    ]
    assert all(same_bits(runs[0], run) for run in runs[1:])
