"""Times what the state of a trainer of a large model costs.

    bench/training/state.sh

One CPU replica of one thread. Each round runs two steps, publishes, and runs one more step. The
second step of a round shows the cost of a step that follows no publication. Checkpoints are saved
after a step each, and compared with a plain write of as many bytes. Forks copy the last one.
"""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import braid
import numpy as np
import torch
from bench.training.braid_loops import BraidServer
from torch import nn

ROUNDS = int(os.environ.get("ROUNDS", "10"))
PARAMETERS = int(float(os.environ.get("PARAMETERS", "100")) * 1e6)
LAYERS = 4
ROWS = 2
FROZEN = [{"pattern": rf"^[0-{LAYERS - 1}]\.", "frozen": True}]
PAUSES = re.compile(r'^braid_checkpoint_pause_seconds_sum\{.*trainer="(.*)"\} (.*)$', re.M)


def module(width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(width, width, bias=False) for _ in range(LAYERS)), nn.Linear(width, 1)
    )


def timed(call: Callable[[], object]) -> float:
    """Returns the milliseconds that the call takes."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def pauses(server: BraidServer) -> dict[str, float]:
    """Returns the milliseconds for which checkpoints have held up each trainer."""
    with urllib.request.urlopen(server.metrics_url) as reply:
        return {name: float(value) * 1e3 for name, value in PAUSES.findall(reply.read().decode())}


def write_to_disk(path: Path, size: int) -> None:
    piece = np.random.default_rng(0).bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(size >> 20):
            file.write(piece)
        os.fsync(file.fileno())


def measure(server: BraidServer, width: int, folder: Path) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)

    def create(name: str, **options: object) -> braid.Trainer:
        return server.client.create_trainer(
            "large", name=name, loss="mse", optimizer={"name": "SGD", "lr": 1e-6}, **options
        )

    times["create the first trainer"].append(timed(lambda: create("first")))
    server.client.trainer("first").delete()
    times["create another trainer"].append(timed(lambda: create("all")))
    times["create a trainer of the last layer"].append(
        timed(lambda: create("last", parameter_groups=FROZEN))
    )
    all_layers, last_layer = (server.client.trainer(name) for name in ("all", "last"))
    x = np.random.default_rng(0).standard_normal((ROWS, width), dtype=np.float32)
    batch = {"input": x}, {"target": np.zeros((ROWS, 1), dtype=np.float32)}
    before = pauses(server)
    for _ in range(ROUNDS):
        all_layers.step(*batch)
        times["step"].append(timed(lambda: all_layers.step(*batch)))
        times["publish"].append(timed(all_layers.publish))
        times["step after it"].append(timed(lambda: all_layers.step(*batch)))
    for trainer, name in ((all_layers, "checkpoint"), (last_layer, "checkpoint of the last layer")):
        for _ in range(ROUNDS):
            trainer.step(*batch)
            times[name].append(timed(trainer.save_checkpoint))
            pause = pauses(server)[trainer.name]
            times[f"{name}: pause"].append(pause - before[trainer.name])
            before[trainer.name] = pause
    saved = all_layers.save_checkpoint()
    for number in range(ROUNDS):
        fork = f"fork-{number}"
        times["fork at a checkpoint"].append(timed(lambda: all_layers.fork(fork, step=saved.step)))
        server.client.delete_trainer(fork)
    disk = folder / "disk"
    for _ in range(ROUNDS):
        times["plain write of as many bytes"].append(timed(lambda: write_to_disk(disk, 4 * PARAMETERS)))
        disk.unlink()
    return times


def main() -> None:
    width = int((PARAMETERS / LAYERS) ** 0.5)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        example = {"input": torch.randn(4, width)}
        braid.export(module(width), example, repository / "large", precisions=())
        server = BraidServer(repository, 1, Path(folder) / "run")
        try:
            times = measure(server, width, Path(folder))
        finally:
            server.close()
    print("| call | median | maximum |")
    print("|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {statistics.median(values):.0f} ms | {max(values):.0f} ms |")


if __name__ == "__main__":
    main()
