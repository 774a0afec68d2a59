#!/usr/bin/env python3
"""Trains on a large table and scores it, and checks how much memory the server needs for it.

The table has random float32 rows, by default 4 GB. Samples the server's anonymous memory (RssAnon):
pages of mapped files, such as the row cache, do not count, because the system can drop them at any
time. Needs three times the table's size of free disk space in TMPDIR. BRAID_SERVER_BINARY names the
server, if it is not build/release/bin/braid-server. Exits with 1 if the jobs need more than the
limit beyond the idle server.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from e2e.support import jobs
from torch import nn

WIDTH = 256
GROUP_ROWS = 50_000
SAMPLE_SECONDS = 0.05


class Memory(threading.Thread):
    """Samples the anonymous memory of a process until `stop`. peak: in bytes."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._status = Path(f"/proc/{pid}/status")
        self._stopped = threading.Event()

    def now(self) -> int:
        lines = self._status.read_text().splitlines()
        line = next(line for line in lines if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def run(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, self.now())

    def stop(self) -> int:
        self._stopped.set()
        self.join()
        return self.peak


def write_table(path: Path, size: float) -> int:
    """Writes random rows of `size` GB, and returns their number."""
    random = np.random.default_rng(0)
    rows = int(size * 1e9) // (4 * WIDTH)
    row = pa.list_(pa.float32(), WIDTH)
    schema = pa.schema([("id", pa.int64()), ("image", row), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for start in range(0, rows, GROUP_ROWS):
            count = min(GROUP_ROWS, rows - start)
            values = pa.array(random.standard_normal(count * WIDTH, np.float32))
            columns = [
                np.arange(start, start + count),
                pa.FixedSizeListArray.from_arrays(values, WIDTH),
                random.integers(0, 10, count),
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=GROUP_ROWS)
    return rows


def measure(name: str, server: jobs.JobServer, job: braid.Job, rows: int, idle: int) -> int:
    """Waits for a job and prints its peak. Returns the bytes beyond the idle server."""
    memory = Memory(server.process.pid)
    memory.start()
    began = time.monotonic()
    job.wait()
    seconds = time.monotonic() - began
    used = memory.stop() - idle
    print(f"{name}: {used / 1e6:.0f} MB, {rows / seconds:.0f} rows/s, {seconds:.0f} s", flush=True)
    return used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4, help="of the table; default: 4")
    parser.add_argument("--limit", type=float, default=1, help="GB beyond idle; default: 1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="braid-job-memory-") as name:
        directory = Path(name)
        module = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))
        braid.export(module, {"input": torch.randn(8, WIDTH)}, directory / "models/mlp")
        with jobs.serving(directory) as server, braid.connect(server.address) as client:
            rows = write_table(server.tables / "large.parquet", arguments.gigabytes)
            idle = Memory(server.process.pid).now()
            print(f"idle: {idle / 1e6:.0f} MB; table: {rows} rows", flush=True)
            data = {"path": "large.parquet", "inputs": {"input": "image"}}
            train = client.jobs.train(
                "mlp", data={**data, "targets": {"target": "label"}}, loss="cross_entropy",
                optimizer="SGD", batch_size=1024, epochs=1,
            )  # fmt: skip
            used = measure("training", server, train, rows, idle)
            output = {"path": "scores.parquet", "keep": ["id"]}
            score = client.jobs.infer("mlp", data=data, output=output)
            used = max(used, measure("scoring", server, score, rows, idle))
    return 0 if used <= arguments.limit * 1e9 else 1


if __name__ == "__main__":
    sys.exit(main())
