"""The example program of the C++ client library."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import braid
import pytest
from e2e.support.server import BINARY, Server

EXAMPLE = BINARY.with_name("braid-example-client")


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    return serve("cpu*2")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([EXAMPLE, *arguments], capture_output=True, text=True, timeout=60)


def test_it_infers_trains_and_deletes_its_trainer(server: Server) -> None:
    done = run(server.address, "mlp")
    assert (done.returncode, done.stderr) == (0, "")
    first, *steps = done.stdout.splitlines()
    assert re.fullmatch(r"version 1 of mlp on( cpu:\d \(\d+ rows\))+", first)
    assert [line.partition(":")[0] for line in steps] == [f"step {n}" for n in range(1, 21)]
    losses = [float(line.rpartition(" ")[2]) for line in steps]
    assert losses[-1] < losses[0]
    with braid.connect(server.address) as client:
        assert client.trainers() == []


def test_errors_are_printed(server: Server) -> None:
    done = run(server.address, "none")
    assert done.returncode == 1
    assert "NOT_FOUND" in done.stderr
    assert run().returncode == 2
