"""Models and datasets of bench/jobs."""

from __future__ import annotations

from pathlib import Path

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from dataset import PACKAGED, read_idx
from export import FashionNet
from torch import nn

from bench.common.export_mlp import Mlp

COLUMNS = [f"c{column}" for column in range(32)]
BATCH_SIZE = 256
SGD = {"lr": 0.01, "momentum": 0.9}
_CHUNK_ROWS = 1_000_000


def scorer() -> nn.Module:
    """Returns 32→64→1, with the same weights every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).eval()


def classifier() -> nn.Module:
    """Returns the convnet of scripts/demo.sh, with the same weights every time."""
    torch.manual_seed(0)
    return FashionNet()


def export(repository: Path) -> None:
    """Exports "fashion", "scorer" and "mlp", the model of the requests next to jobs."""
    images = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8)
    braid.export(classifier(), {"x": images}, repository / "fashion", "pair")
    braid.export(scorer(), {"input": torch.randn(4, 32)}, repository / "scorer", "pair")
    braid.export(Mlp().eval(), {"x": torch.randn(4, 784)}, repository / "mlp", "pair")


def write_images(path: Path, rows: int) -> None:
    """Writes the first images of Fashion-MNIST's training set: image uint8 [1, 28, 28], label."""
    images = read_idx(PACKAGED / "train-images-idx3-ubyte.gz", 3)[:rows]
    labels = read_idx(PACKAGED / "train-labels-idx1-ubyte.gz", 1)[:rows].astype(np.int64)
    column = pa.array(images.reshape(-1))
    for size in (28, 28, 1):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    pq.write_table(pa.table({"image": column, "label": labels}), path)


def write_table(path: Path, rows: int) -> None:
    """Writes `rows` rows of 32 float32 columns, of normally distributed numbers."""
    random = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float32()) for name in COLUMNS])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, _CHUNK_ROWS):
            count = min(_CHUNK_ROWS, rows - start)
            columns = random.standard_normal((32, count), dtype=np.float32)
            writer.write_table(pa.table(list(columns), schema=schema))
