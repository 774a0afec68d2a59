"""Triton's own load generator runs against the server, unchanged."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest
from e2e.server import ROOT, Server

SCRIPT = ROOT / "scripts/perf_analyzer.sh"
# One measurement of so many requests, whether it is stable or not: this is no benchmark.
MEASUREMENT = [
    "--measurement-mode=count_windows",
    "--measurement-request-count=20",
    "--stability-percentage=999",
    "--max-trials=3",
]


# The model says max_batch_size 64.
@pytest.mark.parametrize("rows", [1, 32, 1000])
def test_perf_analyzer_measures(serve: Callable[[str], Server], rows: int) -> None:
    command = [str(SCRIPT), "-m", "mlp", "-i", "grpc", "-u", serve("cpu*2").address]
    done = subprocess.run(
        [*command, "-b", str(rows), "--concurrency-range=4", *MEASUREMENT],
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
