"""`braid train` on a real server: the batch at which it resumes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer
from e2e.support.server import COMMAND

SECONDS = 60
BATCHES, ROWS = 10, 8
NOT_FINITE = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DurableServer]:
    with durable.serving(tmp_path, with_data=False) as server:
        yield server


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Returns options for data whose first batches are not finite."""
    x = np.random.default_rng(0).standard_normal((BATCHES * ROWS, durable.FEATURES), np.float32)
    x[: NOT_FINITE * ROWS, 0] = np.nan
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.arange(len(x)) % durable.CLASSES)
    return [
        f"--input=x={tmp_path}/x.npy", f"--target=target={tmp_path}/y.npy",
        f"--batch-size={ROWS}", "--no-shuffle",
    ]


def train(server: DurableServer, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), "--server", server.address, "--json", "train", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)


def batches(run: subprocess.CompletedProcess[str]) -> list[tuple[int, int]]:
    """Returns (epoch, batch) of each trained batch."""
    assert run.returncode == 0, run.stderr
    events = [json.loads(line) for line in run.stdout.splitlines()]
    return [
        (event["epoch"], event["step"]) for event in events if event["event"] == "step"
    ]


def test_skipped_batches_are_not_repeated(
    server: DurableServer, data: list[str]
) -> None:
    """A publication does not count as a batch."""
    with durable.connect(server) as client:
        client.create_trainer("noisy", loss="cross_entropy", optimizer="SGD", non_finite="skip")
        assert batches(train(server, "--attach=noisy", "--publish", *data)) == [
            (1, number + 1) for number in range(BATCHES)
        ]
        info = client.trainer("noisy").info()
        assert (info.step, info.skipped) == (BATCHES - NOT_FINITE, NOT_FINITE)
        assert info.applied_sequence == BATCHES + 1
        again = train(server, "--attach=noisy", *data)
        assert again.returncode != 0
        assert f"has already taken {BATCHES} batches (--epochs 1 is {BATCHES} batches" in again.stderr
        assert batches(train(server, "--attach=noisy", "--epochs=2", *data)) == [
            (2, number + 1) for number in range(BATCHES)
        ]
        assert client.trainer("noisy").info().applied_sequence == 2 * BATCHES + 1
