"""Benchmarks training steps with and without a journal, in alternating rounds.

    bench/training/journal.sh

The convnet of examples/fashion_mnist in batches of 256 images on two CPU replicas with one thread each, and an
MLP of 100 k parameters in batches of 64 rows. The client waits for each reply, or streams.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import braid
import numpy as np
import torch
from torch import nn

from bench.common.table import alternate
from bench.training.braid_loops import BraidServer
from examples.fashion_mnist.export import FashionNet

ROUNDS = int(os.environ.get("ROUNDS", "10"))
JOURNALS = ("none", "operations")
Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def waiting(trainer: braid.Trainer, batch: Batch, steps: int) -> None:
    for _ in range(steps):
        trainer.step(*batch)


def streaming(trainer: braid.Trainer, batch: Batch, steps: int) -> None:
    with trainer.stream() as stream:
        for _ in range(steps):
            stream.step(*batch)


def side(
    run: Callable[[braid.Trainer, Batch, int], None],
    trainer: braid.Trainer,
    batch: Batch,
    steps: int,
) -> Callable[[], float]:
    def measure() -> float:
        """Returns the milliseconds of a step."""
        start = time.perf_counter()
        run(trainer, batch, steps)
        return (time.perf_counter() - start) / steps * 1e3

    return measure


def compare(client: braid.Client, model: str, batch: Batch, steps: int) -> None:
    trainers = [
        client.create_trainer(
            model,
            name=f"{model}-{journal}",
            loss="cross_entropy",
            optimizer={"name": "SGD", "lr": 1e-3},
            journal=journal,
        )
        for journal in JOURNALS
    ]
    for run in (waiting, streaming):
        sides = [side(run, trainer, batch, steps) for trainer in trainers]
        for warm_up in sides:
            warm_up()
        results = alternate(ROUNDS, *sides)
        without, journaled = (statistics.median(column) for column in zip(*results, strict=True))
        ratio = statistics.median(now / before for before, now in results)
        print(
            f"| {model} | {run.__name__} | {without:.2f} ms | {journaled:.2f} ms | {ratio:.2f} |",
            flush=True,
        )


def write_to_disk(path: Path) -> float:
    """Returns the milliseconds in which 1 KB becomes durable."""
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(50):
            start = time.perf_counter()
            file.write(bytes(1000))
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="braid-journal-") as directory:
        folder = Path(directory)
        torch.manual_seed(0)
        images = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8)
        braid.export(FashionNet(), {"x": images}, folder / "models" / "convnet", "pair")
        braid.export(mlp(), {"input": torch.zeros(2, 256)}, folder / "models" / "mlp")
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 256, (256, 1, 28, 28), dtype=np.uint8)
        vectors = rng.standard_normal((64, 256), dtype=np.float32)
        print(f"write 1 KB to the disk: {write_to_disk(folder / 'probe'):.2f} ms\n")
        print("| model | client | without | with a journal | ratio |\n|---|---|---|---|---|")
        server = BraidServer(folder / "models", replicas=2, folder=folder / "run")
        try:
            for model, name, x, steps in (
                ("convnet", "x", pixels, 40),
                ("mlp", "input", vectors, 200),
            ):
                batch = {name: x}, {"target": rng.integers(0, 10, len(x))}
                compare(server.client, model, batch, steps)
        finally:
            server.close()


if __name__ == "__main__":
    main()
