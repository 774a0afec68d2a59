"""Triton's perf_analyzer runs against the server without changes."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.support.server import ROOT, Server

SCRIPT = ROOT / "scripts/perf_analyzer.sh"
# One measurement of this many requests, even if unstable: this is not a benchmark.
MEASUREMENT = [
    "--measurement-mode=count_windows",
    "--measurement-request-count=20",
    "--stability-percentage=999",
    "--max-trials=3",
]


def measure(server: Server, *options: str, model: str = "mlp") -> None:
    """Runs perf_analyzer on a model. Checks the exit code and that a throughput is printed."""
    command = [str(SCRIPT), "-m", model, "-i", "grpc", "-u", server.address]
    done = subprocess.run(
        [*command, "--concurrency-range=4", *MEASUREMENT, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert "rror" not in output and "ailed" not in output, output
    throughput = re.search(r"Throughput: ([\d.]+) infer/sec", output)
    assert throughput and float(throughput[1]) > 0, output


# max_batch_size is 64.
@pytest.mark.parametrize("rows", [1, 32, 1000])
def test_perf_analyzer_runs(serve: Callable[[str], Server], rows: int) -> None:
    measure(serve("cpu*2"), "-b", str(rows))


def test_perf_analyzer_sends_integers_of_a_file(
    serve: Callable[[str], Server], tmp_path: Path
) -> None:
    """Random bits, its default, are no indices of an embedding."""
    file = tmp_path / "requests.json"
    rows = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 999]]
    data = [{"INPUT__0": {"content": row, "shape": [5]}} for row in rows]
    file.write_text(json.dumps({"data": data}))
    measure(serve("cpu*2"), "-b", "4", "--input-data", str(file), model="sentences")


def test_perf_analyzer_runs_with_a_stream(serve: Callable[[str], Server]) -> None:
    measure(serve("cpu*2"), "--streaming", "--async")


def test_perf_analyzer_runs_with_shared_memory(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*2", ("mlp",), ("--allow_client_shared_memory",))
    measure(server, "-b", "32", "--shared-memory=system")
