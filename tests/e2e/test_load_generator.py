"""bench/load.cc, by which the benchmarks measure: it sends what it is told to, and tells of every
reply."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

from e2e.support.metrics import scrape
from e2e.support.server import BINARY, Server

LOAD = BINARY.with_name("braid-bench-load")
ROWS = "braid_batch_size_rows_sum"
SLOW = ("--model=slow", "--shape=1,256")


def run(server: Server, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(LOAD), f"--server={server.address}", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def load(server: Server, *flags: str) -> dict:
    done = run(server, *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_in_order(answers: dict) -> None:
    assert 0 < answers["p50_ms"] <= answers["p99_ms"] <= answers["most_ms"]


def test_a_closed_loop_sends_as_many_as_it_is_told(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*2", ("mlp",))
    done = load(server, "--shape=3,784", "--requests=100", "--in_flight=8", "--connections=3")
    assert (done["completed"]["count"], done["refused"]["count"]) == (100, 0)
    assert_in_order(done["completed"])
    assert scrape(server.metrics_url).value(ROWS, model="mlp") == 300


def test_a_closed_loop_has_no_more_in_flight_than_places(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*2", ("slow",), ("--max_requests=4",))
    done = load(server, *SLOW, "--requests=40", "--in_flight=4", "--connections=2")
    assert (done["completed"]["count"], done["refused"]["count"]) == (40, 0)
    # Eight at once, of which four find no place.
    flags = ("--model=slow", "--shape=20,256", "--requests=8", "--in_flight=8", "--connections=2")
    done = load(server, *flags)
    assert done["refused"]["count"] > 0
    assert done["completed"]["count"] + done["refused"]["count"] == 8


def test_an_open_loop_sends_by_the_clock_whatever_is_replied(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*2", ("slow",), ("--max_requests=1",))
    done = load(server, *SLOW, "--requests=500", "--rate=1000", "--connections=4")
    assert done["completed"]["count"] + done["refused"]["count"] == 500
    assert done["completed"]["count"] > 0
    assert done["refused"]["count"] > 0
    assert done["seconds"] >= 0.499  # when the last one was due
    assert_in_order(done["refused"])


def test_a_run_ends_after_its_time(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*2", ("mlp",))
    done = load(server, "--seconds=0.3", "--in_flight=2")
    assert done["seconds"] >= 0.3
    assert done["completed"]["count"] > 0
    assert 0 < done["cpu_seconds"]


def test_what_is_neither_completed_nor_refused_is_an_error(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*2", ("mlp",))
    done = run(server, "--model=nobody", "--requests=5")
    assert done.returncode == 1
    assert done.stderr.startswith("load: NOT_FOUND"), done.stderr
    server.stop()
    done = run(server, "--requests=5")
    assert done.returncode == 1
    assert "nothing answers at" in done.stderr, done.stderr
