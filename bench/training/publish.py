"""Times publishing a large model, and the steps before and after it.

    bench/training/publish.sh

One CPU replica of one thread. Each round runs two steps, publishes, and runs one more step. The
second step of a round shows the cost of a step that follows no publication.
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
from bench.training.braid_loops import BraidServer
from torch import nn

PUBLISHES = int(os.environ.get("PUBLISHES", "10"))
PARAMETERS = int(float(os.environ.get("PARAMETERS", "100")) * 1e6)
LAYERS = 4
ROWS = 2


def module(width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(width, width, bias=False) for _ in range(LAYERS)), nn.Linear(width, 1)
    )


def timed(call: Callable[[], object]) -> float:
    """Returns the milliseconds that the call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    width = int((PARAMETERS / LAYERS) ** 0.5)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        example = {"input": torch.randn(4, width)}
        braid.export(module(width), example, repository / "large", precisions=())
        server = BraidServer(repository, 1, Path(folder) / "run")
        try:
            trainer = server.client.create_trainer(
                "large", loss="mse", optimizer={"name": "SGD", "lr": 1e-6}
            )
            x = np.random.default_rng(0).standard_normal((ROWS, width), dtype=np.float32)
            batch = {"input": x}, {"target": np.zeros((ROWS, 1), dtype=np.float32)}
            times: dict[str, list[float]] = {"step": [], "publish": [], "step after it": []}
            for _ in range(PUBLISHES):
                trainer.step(*batch)
                times["step"].append(timed(lambda: trainer.step(*batch)))
                times["publish"].append(timed(trainer.publish))
                times["step after it"].append(timed(lambda: trainer.step(*batch)))
        finally:
            server.close()
    print("| call | median | maximum |")
    print("|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {statistics.median(values):.0f} ms | {max(values):.0f} ms |")


if __name__ == "__main__":
    main()
