"""Training with sync_batch_norm equals PyTorch's on the whole batch, and without it PyTorch's on the
chunks. Modes are per call."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import training
from e2e.support.oracle import Run, forward_in_chunks
from e2e.support.reference import Reference
from e2e.support.server import COMMAND, Server
from e2e.support.training import MANY_STEPS, assert_equal_runs, classes, new_trainer, on, rows

STEPS = 5
SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}


def batches(count: int) -> list:
    return [
        ({"x": 2 * rows(count, 6, seed=s) + s}, {"target": classes(count, of=4, seed=s)})
        for s in range(STEPS)
    ]


def chunked(replicas: int) -> Reference:
    """Returns a reference that runs the model chunk by chunk."""
    reference = Reference("normed", SGD, "cross_entropy")
    reference.outputs = lambda inputs: {
        "output__0": forward_in_chunks(reference.module, inputs["x"], replicas)
    }
    return reference


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [12, 11, 5])
def test_sync_batch_norm_equals_whole_batch_training(
    trainers: braid.Client, count: int, replicas: int
) -> None:
    """Several layers, chunks of different sizes, single-row chunks, and idle replicas. Compares
    outputs, gradients, weights and running statistics."""
    training.compare(
        trainers,
        "normed",
        batches(count),
        SGD,
        "cross_entropy",
        replicas=replicas,
        sync_batch_norm=True,
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("count", [12, 11, 3])
def test_sync_batch_norm_does_not_change_per_row_norms(
    trainers: braid.Client, count: int, replicas: int
) -> None:
    training.compare(
        trainers,
        "instance_normed",
        batches(count),
        SGD,
        "cross_entropy",
        replicas=replicas,
        sync_batch_norm=True,
    )


@pytest.mark.parametrize("options", [{"loss_mode": "per_replica"}, {"sync": "all_reduce"}])
def test_sync_batch_norm_with_other_step_options(trainers: braid.Client, options: dict) -> None:
    training.compare(
        trainers, "normed", batches(11), SGD, "cross_entropy", sync_batch_norm=True, **options
    )


def test_sync_batch_norm_with_client_loss(trainers: braid.Client) -> None:
    """Gradients of the statistics are all-reduced in a separate backward pass, too."""
    wanted = Reference("normed", SGD, lambda outputs, _: outputs["output__0"].square().sum() / 2)
    x = batches(11)[1][0]
    with new_trainer(
        trainers,
        "normed",
        stages=on(3),
        loss_mode="client",
        optimizer=SGD,
        sync_batch_norm=True,
    ) as trainer:
        for _ in range(3):
            trainer.backward(trainer.forward(x, keep_graph=True).outputs)
            trainer.optim_step()
            wanted.accumulate(x, {})
            wanted.update()
        training.assert_state(trainer, wanted, MANY_STEPS)


def test_statistics_are_per_chunk_without_sync(trainers: braid.Client) -> None:
    """Each replica normalizes its own rows, and the running statistics come from the primary. The
    reference runs the model chunk by chunk."""
    whole = Reference("normed", SGD, "cross_entropy").train(batches(11))
    expected = chunked(3).train(batches(11))
    actual = training.run(
        trainers, "normed", batches(11), loss="cross_entropy", optimizer=SGD
    )
    assert_equal_runs(actual, expected, MANY_STEPS)
    statistics = "rows.running_mean"
    assert np.abs(expected.state[statistics] - whole.state[statistics]).max() > 0.01


@pytest.mark.parametrize("sync", [False, True])
def test_evaluation_uses_running_statistics(trainers: braid.Client, sync: bool) -> None:
    """Evaluates between training passes, on another distribution, and changes nothing."""
    train, other = batches(12)[:2]
    with new_trainer(
        trainers,
        "normed",
        stages=on(2),
        loss="cross_entropy",
        optimizer=SGD,
        sync_batch_norm=sync,
    ) as trainer:
        trainer.step(*train)
        before = trainer.state_dict()
        evaluated = trainer.forward(*other, mode="eval")
        result = trainer.evaluate([other], metrics=())
        training.assert_unchanged(before, trainer.state_dict())
    module = Reference("normed", SGD, "cross_entropy").module.eval()
    module.load_state_dict({name: torch.tensor(value) for name, value in before.items()})
    # A layer without running statistics uses its chunk's statistics.
    outputs = torch.cat([module(chunk) for chunk in other[0]["x"].chunk(2)]).detach()
    loss = torch.nn.functional.cross_entropy(outputs, other[1]["target"]).item()
    np.testing.assert_allclose(evaluated.outputs["output__0"], outputs, rtol=0, atol=1e-12)
    assert evaluated.loss == pytest.approx(loss, abs=1e-12)
    assert result.loss == pytest.approx(loss, abs=1e-12)


def test_one_row_chunk_fails_without_sync(trainers: braid.Client) -> None:
    """PyTorch fails, too, because one row has no variance. Also if other trainers of the model use
    sync_batch_norm. The trainer does not change."""
    x, target = batches(7)[0]
    with new_trainer(
        trainers, "normed", stages=on(3), loss="cross_entropy", optimizer=SGD
    ) as trainer:
        before = trainer.state_dict()
        with pytest.raises(braid.InvalidArgument, match="more than 1 value per channel") as caught:
            trainer.step(x, target)
        assert caught.value.field == "inputs"
        assert "the 1 row of cpu:2, chunk 3 of 3 that 7 rows are split into" in caught.value.message
        assert "(drop_last), or set sync_batch_norm)" in caught.value.message
        training.assert_unchanged(before, trainer.state_dict())
        trainer.step({"x": x["x"][:6]}, {"target": target["target"][:6]})
        actual = trainer.state_dict()
    wanted = chunked(3)
    wanted.step({"x": x["x"][:6]}, {"target": target["target"][:6]})
    assert_equal_runs(Run([], actual), Run([], wanted.state()), MANY_STEPS)


DROP = "leave out an epoch's last, smaller batch (drop_last)"


@pytest.mark.parametrize(
    "count, options, place, ways",
    [
        # A batch of one row has no variance on any number of replicas.
        (1, {}, "cpu:0: ", DROP),
        (7, {"micro_batch": 1, "stages": on(1)}, "cpu:0: ", "raise micro_batch"),
        (
            5,
            {"micro_batch": 1},
            r"cpu:\d, chunk \d of 3 that 3 rows are split into: ",
            "raise micro_batch, or set sync_batch_norm",
        ),
        (
            5,
            {"stages": on(4)},
            "cpu:2, chunk 3 of 3 that 5 rows are split into: ",
            f"{DROP}, or set sync_batch_norm",
        ),
    ],
    ids=str,
)
def test_error_for_one_row_chunk_suggests_a_fix(
    trainers: braid.Client, count: int, options: dict, place: str, ways: str
) -> None:
    options = {"stages": on(3), **options}
    with new_trainer(
        trainers, "normed", loss="cross_entropy", optimizer=SGD, **options
    ) as trainer:
        with pytest.raises(braid.InvalidArgument) as caught:
            trainer.step(*batches(count)[0])
    assert re.search(f"cannot train on the 1 row of {place}", caught.value.message)
    assert caught.value.message.endswith(f"at least 2 rows in each chunk: {ways})")


def test_command_suggests_drop_last_for_small_last_batch(
    training_server: Server, tmp_path: Path
) -> None:
    """13 rows in batches of 8 leave 5, which are split into 2, 2 and 1 on four devices."""
    inputs, targets = batches(13)[0]
    np.save(tmp_path / "x.npy", inputs["x"])
    np.save(tmp_path / "y.npy", targets["target"])

    def train(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, "--server", training_server.address, "train", "normed",
             f"--input=x={tmp_path}/x.npy", f"--target=target={tmp_path}/y.npy",
             "--batch-size=8", *options],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    failed = train()
    assert failed.returncode != 0
    assert "chunk 3 of 3 that 5 rows are split into" in failed.stderr
    assert "the batch is the last of an epoch, with 5 rows: --drop-last leaves it out" in failed.stderr
    for option, steps in (("--drop-last", 1), ("--sync-batch-norm", 2)):
        done = train(option)
        assert done.returncode == 0, done.stderr
        assert f"trained {steps} steps" in done.stdout
