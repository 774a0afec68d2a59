"""Publishing again and again while clients send requests.

Step s of the trainer sets all weights to s, and each step is published, as version s + 1. So every
element of a reply must be one less than the version that the reply names.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import braid
import numpy as np
import torch
from e2e.support.server import Server
from torch import Tensor, nn

WIDTH = 64
# Rows of each client's requests. The server merges small requests and splits large ones.
ROWS = (1, 1, 3, 300)


class Level(nn.Module):
    """Returns its weights for every row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * 0 + self.weight


@dataclass
class Outcome:
    """publish_seconds: duration of each call. replies: of all clients. problems: what was wrong with
    replies, and errors of calls."""

    publish_seconds: list[float] = field(default_factory=list)
    replies: int = 0
    problems: list[str] = field(default_factory=list)


class _Client(threading.Thread):
    """Sends requests of `rows` rows until `ends` is set."""

    def __init__(self, address: str, rows: int, ends: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._rows, self._ends = address, rows, ends
        self.replies, self.problems = 0, []

    def run(self) -> None:
        x = np.ones((self._rows, WIDTH), np.float32)
        newest = 0
        with braid.connect(self._address) as client:
            while not self._ends.is_set():
                try:
                    reply = client.infer_versioned("level", {"x": x})
                except braid.BraidError as error:
                    self.problems.append(f"{self._rows} rows: {error}")
                    return
                (output,) = reply.outputs.values()
                values = set(output.flatten().tolist())
                step = reply.training_step or 0
                if values != {reply.version - 1} or step not in values or reply.version < newest:
                    self.problems.append(
                        f"{self._rows} rows: {sorted(values)} from version {reply.version}, "
                        f"after version {newest}"
                    )
                newest = reply.version
                self.replies += 1


def run(directory: Path, publishes: int) -> Outcome:
    """Publishes that many times on a new server of two CPU replicas."""
    braid.export(Level(), {"x": torch.ones(2, WIDTH)}, directory / "models/level", precisions=())
    outcome = Outcome()
    ends = threading.Event()
    with (
        Server(directory / "models", "cpu*2", directory / "run") as server,
        braid.connect(server.address) as client,
    ):
        clients = [_Client(server.address, rows, ends) for rows in ROWS]
        # The gradient is 2 (weight - target) / WIDTH, so a step sets the weights to the target.
        trainer = client.create_trainer(
            "level", loss="mse", optimizer={"name": "SGD", "lr": WIDTH / 2}
        )
        x = np.ones((1, WIDTH), np.float32)
        for each in clients:
            each.start()
        for step in range(1, publishes + 1):
            trainer.step({"x": x}, {"target": np.full((1, WIDTH), step, np.float32)})
            start = time.perf_counter()
            version = trainer.publish()
            outcome.publish_seconds.append(time.perf_counter() - start)
            if version != step + 1:
                outcome.problems.append(f"step {step} was published as version {version}")
        ends.set()
        for each in clients:
            each.join()
            outcome.replies += each.replies
            outcome.problems += each.problems
        newest = client.infer_versioned("level", {"x": x}).version
        if newest != publishes + 1:
            outcome.problems.append(f"version {newest} serves at the end")
    return outcome
