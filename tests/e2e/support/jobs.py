"""Servers with jobs, tables for them, and the order in which a job uses the rows."""

from __future__ import annotations

import bisect
import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from e2e.support.durable import DurableServer
from e2e.support.oracle import mix_seed
from e2e.support.server import COMMAND

COMMAND_SECONDS = 120
_SHUFFLE, _SPLIT, _DRAW, _BATCHES = 1, 2, 3, 4
_SORTED_BATCHES = 50
_ROUNDS = 6


class JobServer(DurableServer):
    """A server of the models in directory/models, with the data in directory/tables."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "models", "cpu*2", directory / "run")
        self.tables = directory / "tables"
        self.tables.mkdir(exist_ok=True)
        self.replace_flag("--data_root", str(self.tables))

    @property
    def outputs(self) -> Path:
        return self.data / "outputs"


@contextmanager
def serving(directory: Path, **flags: str) -> Iterator[JobServer]:
    """A running server. Fails if it is not running at the end, then kills it."""
    server = JobServer(directory)
    for name, value in flags.items():
        server.replace_flag(f"--{name}", value)
    try:
        server.start()
        yield server
        assert server.process.poll() is None, server.log
    finally:
        server.kill()


def write_table(path: Path, rows: int, dtype: type, width: int, classes: int) -> pa.Table:
    """Writes a Parquet file of `rows` rows in several row groups, and returns it.

    Columns: "id" int64, "name" text, "image" `dtype` [width], "label" int64 below `classes`,
    "weight" float64.
    """
    random = np.random.default_rng(rows)
    image = random.standard_normal((rows, width)).astype(dtype)
    table = pa.table({
        "id": np.arange(rows) + 1000,
        "name": [f"row {row}" for row in range(rows)],
        "image": pa.FixedSizeListArray.from_arrays(pa.array(image.reshape(-1)), width),
        "label": image[:, :classes].argmax(1),
        "weight": random.integers(0, 4, rows).astype(np.float64),
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=max(rows // 3, 1))
    return table


def tensor_of(table: pa.Table, column: str) -> np.ndarray:
    """Returns a column of numbers, or of lists of the same length, as an array."""
    array = table[column].combine_chunks()
    if pa.types.is_fixed_size_list(array.type):
        return array.flatten().to_numpy().reshape(len(array), -1)
    return array.to_numpy()


def braid(server: JobServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the braid command with --json."""
    return subprocess.run(
        [str(COMMAND), "--server", server.address, "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )


def braid_json(server: JobServer, *arguments: str) -> Any:
    """Runs the braid command, which must succeed and print one object."""
    ended = braid(server, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    [line] = ended.stdout.splitlines()
    return json.loads(line)


def batches(
    rows: int,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    validation: float = 0.0,
    weights: np.ndarray | None = None,
    lengths: list[int] | None = None,
) -> Iterator[list[int]]:
    """Yields the row numbers of each batch of a training job, without end.

    lengths: bytes of the texts, if rows are padded to the longest text of the batch.
    A second implementation of the order that server/data/row_order.h defines.
    """
    kept = training_rows(rows, validation, seed)
    for epoch in itertools.count():
        order = [kept[at] for at in _epoch(len(kept), seed, epoch, shuffle, weights, kept)]
        if lengths is not None:
            order = _sorted_batches(order, batch_size, lengths, seed, epoch)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            if len(batch) == batch_size or not drop_last:
                yield batch


def training_rows(rows: int, validation: float, seed: int) -> list[int]:
    """Returns the rows that the split leaves for training: one of each range is for validation."""
    ranges = round(validation * rows)
    split = mix_seed(seed, _SPLIT)
    held_out = set()
    for index in range(ranges):
        begin, end = index * rows // ranges, (index + 1) * rows // ranges
        held_out.add(begin + _below(mix_seed(split, index), end - begin))
    return [row for row in range(rows) if row not in held_out]


def _epoch(
    size: int, seed: int, epoch: int, shuffle: bool, weights: np.ndarray | None, kept: list[int]
) -> list[int]:
    if weights is not None:
        key = mix_seed(mix_seed(seed, _DRAW), epoch)
        sums = list(itertools.accumulate(weights[kept].tolist()))
        uniform = [(mix_seed(key, at) >> 11) * 2.0**-53 for at in range(size)]
        return [bisect.bisect_right(sums, each * sums[-1]) for each in uniform]
    if not shuffle:
        return list(range(size))
    key = mix_seed(mix_seed(seed, _SHUFFLE), epoch)
    return [_permuted(at, size, key) for at in range(size)]


def _sorted_batches(
    order: list[int], batch_size: int, lengths: list[int], seed: int, epoch: int
) -> list[int]:
    rows = []
    window_rows = _SORTED_BATCHES * batch_size
    for window in range(-(-len(order) // window_rows)):
        part = order[window * window_rows : (window + 1) * window_rows]
        batches = len(part) // batch_size
        full = sorted(part[: batches * batch_size], key=lengths.__getitem__)
        key = mix_seed(mix_seed(mix_seed(seed, _BATCHES), epoch), window)
        for at in range(batches):
            begin = _permuted(at, batches, key) * batch_size
            rows += full[begin : begin + batch_size]
        rows += part[batches * batch_size :]
    return rows


def _permuted(index: int, size: int, key: int) -> int:
    """A Feistel network over the next power of four, repeated until the result is in range."""
    half = 1
    while 1 << (2 * half) < size:
        half += 1
    mask = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & mask
        for round_ in range(_ROUNDS):
            left, right = right, left ^ (mix_seed(key + round_ & (1 << 64) - 1, right) & mask)
        value = left << half | right
        if value < size:
            return value


def _below(uniform: int, size: int) -> int:
    return uniform * size >> 64
