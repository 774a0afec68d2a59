"""Scripts without Braid: training with a DataLoader, and scoring with pyarrow.

    python -m bench.jobs.plain train IMAGES EPOCHS THREADS WORKERS
    python -m bench.jobs.plain score TABLE OUTPUT BATCH_SIZE THREADS

Prints the seconds from opening the data to the trained weights or the complete output, and the CPU
seconds.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from bench.jobs.workloads import BATCH_SIZE, SGD, classifier, scorer


def train(path: str, epochs: int, workers: int) -> None:
    """Trains on images in memory. workers: processes of the DataLoader; 0: none."""
    table = pq.read_table(path)
    image = table["image"].combine_chunks()
    while not pa.types.is_uint8(image.type):
        image = image.flatten()
    x = torch.from_numpy(image.to_numpy().reshape(-1, 1, 28, 28).copy())
    target = torch.from_numpy(table["label"].to_numpy().copy())
    loader = DataLoader(
        TensorDataset(x, target),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    module = classifier().train()
    optimizer = torch.optim.SGD(module.parameters(), **SGD)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(images), labels)
            loss.backward()
            optimizer.step()


def score(path: str, output: str, batch_size: int) -> None:
    """Scores a table batch by batch. The output has the type and the row groups of the job's."""
    module = scorer()
    schema = pa.schema([pa.field("output_0", pa.list_(pa.float32(), 1), nullable=False)])
    with (
        pq.ParquetFile(path) as table,
        pq.ParquetWriter(output, schema, compression="snappy") as writer,
        torch.inference_mode(),
    ):
        for batch in table.iter_batches(batch_size):
            x = np.column_stack([column.to_numpy() for column in batch.columns])
            y = module(torch.from_numpy(x)).numpy()
            scores = pa.FixedSizeListArray.from_arrays(pa.array(y.reshape(-1)), 1)
            writer.write_batch(pa.record_batch([scores], schema=schema))


def main() -> None:
    task, path, second, third, fourth = sys.argv[1:]
    threads = int(third if task == "train" else fourth)
    torch.set_num_threads(threads)
    pa.set_cpu_count(threads)
    start, cpu = time.perf_counter(), sum(os.times()[:4])
    if task == "train":
        train(path, int(second), int(fourth))
    else:
        score(path, second, int(third))
    # Also the CPU time of the DataLoader's processes, which have ended.
    print(time.perf_counter() - start, sum(os.times()[:4]) - cpu)


if __name__ == "__main__":
    main()
