"""Tests of bench/load/load.cc, the load generator of the benchmarks."""

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


def test_closed_loop_sends_the_requested_number(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*2", ("mlp",))
    done = load(server, "--shape=3,784", "--requests=100", "--in_flight=8", "--connections=3")
    assert (done["completed"]["count"], done["refused"]["count"]) == (100, 0)
    assert_in_order(done["completed"])
    assert scrape(server.metrics_url).value(ROWS, model="mlp") == 300


def test_closed_loop_limits_requests_in_flight(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*2", ("slow",), ("--max_requests=4",))
    done = load(server, *SLOW, "--requests=40", "--in_flight=4", "--connections=2")
    assert (done["completed"]["count"], done["refused"]["count"]) == (40, 0)
    # Eight in flight exceed --max_requests=4.
    flags = ("--model=slow", "--shape=20,256", "--requests=8", "--in_flight=8", "--connections=2")
    done = load(server, *flags)
    assert done["refused"]["count"] > 0
    assert done["completed"]["count"] + done["refused"]["count"] == 8


def test_open_loop_sends_on_schedule_despite_rejections(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*2", ("slow",), ("--max_requests=1",))
    done = load(server, *SLOW, "--requests=500", "--rate=1000", "--connections=4")
    assert done["completed"]["count"] + done["refused"]["count"] == 500
    assert done["completed"]["count"] > 0
    assert done["refused"]["count"] > 0
    assert done["seconds"] >= 0.499  # Schedule of the last request.
    assert_in_order(done["refused"])


def test_run_ends_after_seconds(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*2", ("mlp",))
    done = load(server, "--seconds=0.3", "--in_flight=2")
    assert done["seconds"] >= 0.3
    assert done["completed"]["count"] > 0
    assert 0 < done["cpu_seconds"]


def test_other_errors_fail_the_run(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*2", ("mlp",))
    done = run(server, "--model=nobody", "--requests=5")
    assert done.returncode == 1
    assert done.stderr.startswith("load: NOT_FOUND"), done.stderr
    server.stop()
    done = run(server, "--requests=5")
    assert done.returncode == 1
    assert "no server responds at" in done.stderr, done.stderr
