"""A training job and a client's trainer share a GPU: results equal PyTorch's, and the trainer's
steps come first."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
from e2e.support import models, oracle, training
from e2e.support.polling import wait_until
from e2e.support.server import Server
from torch import Tensor

from gpu.target import ON_CPU, gpu_only

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
STEPS = 30 if ON_CPU else 100
WARM_UP_STEPS, JOB_STEPS = 50, 1000  # of the job whose rate is measured
SECONDS = 120


def batches(model: str, rows: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the batches of a job that keeps the order of the rows."""
    x, labels = oracle.dataset(model)
    starts = itertools.cycle(range(0, len(x), rows))
    for start in itertools.islice(starts, steps):
        yield x[start : start + rows], labels[start : start + rows]


@pytest.fixture
def server(
    start_server: Callable[..., Server], devices: str, tmp_path: Path
) -> Iterator[Server]:
    data = tmp_path / "tables/data"
    data.mkdir(parents=True)
    x, labels = oracle.dataset("mlp64")
    np.save(data / "image.npy", x.numpy())
    np.save(data / "label.npy", labels.numpy())
    flags = (f"--data_root={data.parent}",)
    server = start_server(devices, names=("mlp64", "convnet64"), flags=flags)
    yield server
    server.stop()


def submit(client: braid.Client, steps: int) -> braid.Job:
    return client.jobs.train(
        "mlp64",
        data={"path": "data", "inputs": {"x": "image"}, "targets": {"target": "label"}},
        loss="cross_entropy", optimizer=SGD, batch_size=100, steps=steps, shuffle=False,
        checkpoint_every=50,
    )  # fmt: skip


def test_a_job_and_a_trainer_at_once_equal_pytorch(server: Server, devices: str) -> None:
    with braid.connect(server.address) as client:
        job = submit(client, STEPS)
        own = oracle.batches_of("mlp64", "cross_entropy", 97, STEPS)
        actual = training.train(client, "mlp64", own, SGD, "cross_entropy")
        job.wait(timeout=SECONDS)
        losses = job.metrics(["loss"])["loss"].values
    wanted = oracle.reference("mlp64", tuple(SGD.items()), "cross_entropy", 97, STEPS)
    oracle.assert_equal_runs(actual, wanted, 1e-9)
    alone = oracle.train(
        models.make("mlp64"), batches("mlp64", 100, STEPS), SGD, "cross_entropy"
    )
    np.testing.assert_allclose(losses, alone.losses, rtol=0, atol=1e-9)


@gpu_only
def test_steps_of_a_trainer_come_before_those_of_a_job(server: Server, devices: str) -> None:
    """Prints the ratios of both to their time and rate alone."""

    def seconds(client: braid.Client, steps: int) -> float:
        with training.new_trainer(
            client, "convnet64", loss="cross_entropy", optimizer=SGD
        ) as trainer:
            times = []
            for x, target in oracle.batches_of("convnet64", "cross_entropy", 256, steps):
                start = time.monotonic()
                trainer.step({"x": x}, {"target": target})
                times.append(time.monotonic() - start)
            return statistics.median(times[10:])

    def rate(job: braid.Job, first: int, start: float) -> float:
        """Returns the steps per second since step `first` at time `start`."""
        return (job.info().progress.step - first) / (time.monotonic() - start)

    with braid.connect(server.address) as client:
        alone = seconds(client, 100)
        job = submit(client, 10_000_000)
        wait_until(lambda: job.info().progress.step >= WARM_UP_STEPS, SECONDS)
        first, start = job.info().progress.step, time.monotonic()
        wait_until(lambda: job.info().progress.step >= first + JOB_STEPS, SECONDS)
        job_alone = rate(job, first, start)
        first, start = job.info().progress.step, time.monotonic()
        shared = seconds(client, 100)
        job_shared = rate(job, first, start)
        job.cancel()
    print(
        f"{devices}: while a job runs, a step of a trainer takes {shared / alone:.2f} x as long, "
        f"and the job runs at {job_shared / job_alone:.2f} x its rate"
    )
    assert job_shared > 0
    assert shared < 2.5 * alone
