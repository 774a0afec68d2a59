"""Compares jobs over JPEG files with PyTorch's DataLoader and torchvision.

    bench/images/jobs.sh [--short] [loading] [scoring]

loading: images per second of a training job whose model does almost nothing, and of a DataLoader with
as many threads. scoring: an inference job with resnet18, and the same script. Every round runs all sides
in turn, in alternating order. Environment: ROUNDS, IMAGES and THREADS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import braid
import numpy as np
import torch
import torchvision
from e2e.support.server import ROOT, Server
from PIL import Image

from bench.common import parts
from bench.common.table import alternate, heading, row

THREADS = int(os.environ.get("THREADS", str(os.cpu_count() or 2)))
BATCH_SIZE = 64
SIZE = 224
CLASSES = 10
LIMIT_SECONDS = 1800
DECODE = {"image": {"transforms": [
    {"resize": 256}, {"center_crop": SIZE}, "to_float",
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]}}  # fmt: skip


class Mean(torch.nn.Module):
    """Costs almost nothing, so that loading is what is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, :, ::32, ::32].mean((2, 3)))


@dataclass(frozen=True)
class Bench:
    folder: Path
    rounds: int
    images: int

    def write(self) -> None:
        """Writes the images, of 500 x 375 pixels, and the models."""
        random = np.random.default_rng(0)
        for index in range(self.images):
            path = self.folder / f"data/images/class{index % CLASSES}/{index:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                small = Image.fromarray(random.integers(0, 256, (47, 63, 3), np.uint8))
                small.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        torch.manual_seed(0)
        images = torch.rand(2, 3, SIZE, SIZE)
        for name, model in (("mean", Mean()), ("resnet18", torchvision.models.resnet18())):
            if not (self.folder / "models" / name).exists():
                braid.export(model, {"x": images}, self.folder / "models" / name, "torchscript")

    @contextmanager
    def server(self) -> Iterator[braid.Client]:
        """Starts a server with one worker of THREADS threads."""
        self.write()
        flags = (f"--cpu_threads={THREADS}", f"--data_root={self.folder / 'data'}")
        directory = Path(tempfile.mkdtemp(dir=self.folder))
        with (
            Server(self.folder / "models", "cpu*1", directory, flags) as server,
            braid.connect(server.address) as client,
        ):
            yield client

    def plain(self, what: str) -> float:
        """Runs a plain script and returns the seconds that it measured."""
        done = subprocess.run(
            [sys.executable, "-m", "bench.images.plain", what,
             str(self.folder / "data/images"), str(THREADS), str(BATCH_SIZE)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LIMIT_SECONDS, check=True,
        )  # fmt: skip
        return float(done.stdout)


def _seconds(job: braid.jobs.Job) -> float:
    info = job.wait(timeout=LIMIT_SECONDS)
    return (info.ended - info.started).total_seconds()


def _data() -> dict[str, object]:
    return {"path": "images", "inputs": {"x": {"column": "image", "decode": DECODE}}}


def loading(bench: Bench) -> None:
    heading(f"Loading {bench.images:,} images, {THREADS} threads", bench.rounds)
    with bench.server() as client:
        rounds = alternate(
            bench.rounds,
            lambda: _seconds(client.jobs.train(
                "mean", data={**_data(), "targets": {"target": "label"}}, loss="cross_entropy",
                optimizer={"name": "SGD", "lr": 0.0}, epochs=1, batch_size=BATCH_SIZE,
            )),
            lambda: bench.plain("load"),
        )  # fmt: skip
    _print(rounds, bench.images, target=1.2)


def scoring(bench: Bench) -> None:
    heading(f"Scoring {bench.images:,} images with resnet18, {THREADS} threads", bench.rounds)
    with bench.server() as client:
        rounds = alternate(
            bench.rounds,
            lambda: _seconds(client.jobs.infer(
                "resnet18", data=_data(), output={"path": "scores.parquet", "overwrite": True},
            )),
            lambda: bench.plain("score"),
        )  # fmt: skip
    _print(rounds, bench.images, target=1.0)


def _print(rounds: list[tuple[float, ...]], images: int, target: float) -> None:
    job, plain = zip(*rounds)
    row("job, images/s", [images / seconds for seconds in job], ".0f")
    row("DataLoader, images/s", [images / seconds for seconds in plain], ".0f")
    ratios = [theirs / ours for ours, theirs in zip(job, plain)]
    row("speed relative to the DataLoader", ratios, target=target)


PARTS = {part.__name__: part for part in (loading, scoring)}


def make_bench(folder: Path, short: bool) -> Bench:
    return Bench(
        folder,
        rounds=int(os.environ.get("ROUNDS", "2" if short else "5")),
        images=int(os.environ.get("IMAGES", "500" if short else "5000")),
    )


def main() -> None:
    start = time.monotonic()
    parts.run(PARTS, make_bench)
    print(f"\nTook {time.monotonic() - start:.0f} s; machine load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
