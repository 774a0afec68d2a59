"""Times exports of recurrent layers, and training steps through the server and in PyTorch.

    bench/training/recurrent.sh

One CPU replica of one thread, and PyTorch with one thread. Every round runs all loops in turn. A
ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import braid
import numpy as np
import torch
from bench.common.table import spread
from bench.training.braid_loops import BraidServer
from torch import nn
from torch.nn import functional

ROUNDS = int(os.environ.get("ROUNDS", "11"))
SECONDS = float(os.environ.get("SECONDS_EACH", "1"))
EXPORTED_STEPS = (64, 256)
STEPS, ROWS, WORDS, CLASSES = 64, 32, 1000, 10
OPTIMIZER = {"name": "SGD", "lr": 0.01}


class Classifier(nn.Module):
    """Embedding of 128 numbers, a recurrent layer of 256 units, and a linear layer."""

    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 128)
        self.layer = kind(128, 256, batch_first=True)
        self.classify = nn.Linear(256 * (2 if self.layer.bidirectional else 1), CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.classify(self.layer(self.embedding(ids))[0][:, -1])


KINDS = {
    "lstm": nn.LSTM,
    "lstm-2-bidirectional": partial(nn.LSTM, num_layers=2, bidirectional=True),
    "gru": nn.GRU,
    "rnn": nn.RNN,
}


def ids(rows: int, steps: int) -> np.ndarray:
    return np.random.default_rng(0).integers(WORDS, size=(rows, steps))


def export(kind: str, steps: int, folder: Path) -> float:
    """Returns the seconds of an export."""
    start = time.perf_counter()
    example = {"ids": torch.from_numpy(ids(4, steps))}
    braid.export(Classifier(KINDS[kind]), example, folder, "pair", precisions=())
    return time.perf_counter() - start


class BraidSteps:
    def __init__(self, client: braid.Client, kind: str) -> None:
        self._trainer = client.create_trainer(kind, loss="cross_entropy", optimizer=OPTIMIZER)

    def step(self, x: np.ndarray, target: np.ndarray) -> None:
        self._trainer.step({"ids": x}, {"target": target})


class TorchSteps:
    def __init__(self, kind: str) -> None:
        self._module = Classifier(KINDS[kind]).train()
        self._stepper = torch.optim.SGD(self._module.parameters(), lr=OPTIMIZER["lr"])

    def step(self, x: np.ndarray, target: np.ndarray) -> None:
        loss = functional.cross_entropy(
            self._module(torch.from_numpy(x)), torch.from_numpy(target)
        )
        self._stepper.zero_grad()
        loss.backward()
        self._stepper.step()
        loss.item()  # Every reply of Braid has the loss, too.


def run(steps: BraidSteps | TorchSteps, x: np.ndarray, target: np.ndarray) -> float:
    """Returns the seconds of a step, on average."""
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        steps.step(x, target)
        count += 1
    return (time.perf_counter() - start) / count


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        export("lstm", 2, Path(folder) / "warm-up")  # Imports what an export needs.
        print("| exported layer | time steps | seconds |\n|---|---|---|")
        for kind in KINDS:
            for steps in EXPORTED_STEPS:
                models = Path(folder) / ("models" if steps == STEPS else "others")
                print(f"| {kind} | {steps} | {export(kind, steps, models / kind):.1f} |", flush=True)
        x, target = ids(ROWS, STEPS), np.arange(ROWS) % CLASSES
        print("\n| layer | step through Braid, ms | in PyTorch, ms | ratio | in rounds |")
        print("|---|---|---|---|---|")
        with closing(BraidServer(Path(folder) / "models", 1, Path(folder) / "run")) as server:
            for kind in KINDS:
                loops = BraidSteps(server.client, kind), TorchSteps(kind)
                times = [[run(each, x, target) for each in loops] for _ in range(ROUNDS)]
                ours, theirs = (statistics.median(each) * 1e3 for each in zip(*times))
                ratios = [one / other for one, other in times]
                print(
                    f"| {kind} | {ours:.1f} | {theirs:.1f} | {spread(ratios, '.2f')} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
