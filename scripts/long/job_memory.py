#!/usr/bin/env python3
"""Trains on a large table or on images and scores them, and checks the memory that the server needs.

The table has random float32 rows, by default 4 GB. With --images, the data are JPEG files of
500 x 375 pixels instead, which become float32 tensors of 3 x 224 x 224 (0.6 MB each). Samples the server's anonymous memory (RssAnon):
pages of mapped files, such as the row cache, do not count, because the system can drop them at any
time. Needs three times the table's size of free disk space in TMPDIR. BRAID_SERVER_BINARY names the
server, if it is not build/release/bin/braid-server. Exits with 1 if the jobs need more than the
limit beyond the idle server.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from e2e.support import jobs
from PIL import Image
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


def write_images(folder: Path, count: int) -> None:
    """Writes `count` JPEG files in folders of 10 classes. Every 50th is the same image."""
    random = np.random.default_rng(0)
    images = []
    for _ in range(50):
        small = Image.fromarray(random.integers(0, 256, (47, 63, 3), np.uint8))
        file = io.BytesIO()
        small.resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        images.append(file.getvalue())
    for index in range(count):
        path = folder / f"class{index % 10}/{index:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images[index % len(images)])


class MeanColor(nn.Module):
    """Costs almost nothing, so that the memory is that of loading."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 10)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.head(input[:, :, ::32, ::32].mean((2, 3)))


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


def table_data(server: jobs.JobServer, gigabytes: float) -> tuple[dict[str, Any], int]:
    """Writes the table. Returns the data for a job and their number of rows."""
    rows = write_table(server.tables / "large.parquet", gigabytes)
    return {"path": "large.parquet", "inputs": {"input": "image"}}, rows


def image_data(server: jobs.JobServer, count: int) -> tuple[dict[str, Any], int]:
    """Writes the images. Returns the data for a job and their number of rows."""
    write_images(server.tables / "images", count)
    decode = {"image": {"transforms": [{"resize": 256}, {"center_crop": 224}, "to_float"]}}
    return {"path": "images", "inputs": {"input": {"column": "image", "decode": decode}}}, count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4, help="of the table; default: 4")
    parser.add_argument("--images", type=int, help="number of JPEG files instead of the table")
    parser.add_argument("--limit", type=float, default=1, help="GB beyond idle; default: 1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="braid-job-memory-") as name:
        directory = Path(name)
        module = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))
        example = torch.randn(8, WIDTH)
        if arguments.images is not None:
            module, example = MeanColor(), torch.rand(8, 3, 224, 224)
        braid.export(module, {"input": example}, directory / "models/model")
        with jobs.serving(directory) as server, braid.connect(server.address) as client:
            if arguments.images is None:
                data, rows = table_data(server, arguments.gigabytes)
            else:
                data, rows = image_data(server, arguments.images)
            idle = Memory(server.process.pid).now()
            print(f"idle: {idle / 1e6:.0f} MB; {rows} rows", flush=True)
            train = client.jobs.train(
                "model", data={**data, "targets": {"target": "label"}}, loss="cross_entropy",
                optimizer="SGD", batch_size=64 if arguments.images else 1024, epochs=1,
            )  # fmt: skip
            used = measure("training", server, train, rows, idle)
            score = client.jobs.infer("model", data=data, output={"path": "scores.parquet"})
            used = max(used, measure("scoring", server, score, rows, idle))
    return 0 if used <= arguments.limit * 1e9 else 1


if __name__ == "__main__":
    sys.exit(main())
