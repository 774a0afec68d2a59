#!/usr/bin/env python3
"""Trains models of torchvision and transformers as exported pairs, and compares with PyTorch.

resnet18, mobilenet_v3_small, vit_b_16 and a BERT classifier, in float64, on 1 to 4 CPU replicas:
inference gives PyTorch's outputs; without dropout every loss, parameter and buffer is what plain
PyTorch comes to on the whole batch, to 1e-9; with dropout the same seed gives the same bits twice.
BRAID_SERVER_BINARY names the server, if it is not build/release/bin/braid-server. Exits with 1 on
any difference. Takes half an hour or more, most of it vit_b_16, and 10 GiB of memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import braid
import numpy as np
import torch
from e2e.support import third_party_pairs, training
from e2e.support.oracle import Run
from e2e.support.server import Server

MODELS = ("resnet18", "mobilenet_v3_small", "bert", "vit_b_16")
TOLERANCE = 1e-9
DROPOUT = 0.1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 2, 3, 4], metavar="N")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="default: 50")
    return parser.parse_args()


def largest_difference(actual: Run, wanted: Run) -> float:
    """Returns the largest difference of losses and state."""
    assert actual.state.keys() == wanted.state.keys()
    pairs = [(np.array(actual.losses), np.array(wanted.losses))]
    pairs += [(actual.state[name], value) for name, value in wanted.state.items()]
    return max(float(np.abs(one - other).max(initial=0)) for one, other in pairs)


def inference_difference(client: braid.Client, name: str) -> float:
    """Returns the largest difference for a batch that is split."""
    recipe = third_party_pairs.RECIPES[name]
    inputs, _ = recipe.batches(1, 300)[0]
    (actual,) = client.infer(name, inputs).values()
    with torch.no_grad():
        outputs = recipe.make(0.0).eval()(**inputs)
    return float(np.abs(actual - third_party_pairs.first(outputs).numpy()).max())


class Report:
    def __init__(self) -> None:
        self.good = True
        self._began = time.monotonic()

    def tell(self, good: bool, what: str) -> None:
        self.good = self.good and good
        seconds = time.monotonic() - self._began
        print(f"{seconds:6.0f} s  {'ok  ' if good else 'FAIL'}  {what}", flush=True)


def train(name: str, replicas: list[int], steps: int, directory: Path, report: Report) -> None:
    repository = directory / "models"
    third_party_pairs.export(repository, name, dropout=0.0)
    noisy = None
    if third_party_pairs.RECIPES[name].has_dropout:
        noisy = third_party_pairs.export(repository, name, DROPOUT)
    report.tell(True, f"{name}: exported")
    wanted = third_party_pairs.in_pytorch(name, steps)
    first, last = wanted.losses[0], wanted.losses[-1]
    report.tell(last < 0.8 * first, f"{name}: PyTorch's loss from {first:.3f} to {last:.3f}")
    for count in replicas:
        run = directory / f"run{count}"
        with Server(repository, f"cpu*{count}", run, ("--cpu_threads=1",), data=False) as server:
            with braid.connect(server.address, timeout=600) as client:
                difference = inference_difference(client, name)
                what = f"{name}: outputs on {count} replicas differ by {difference:.1e}"
                report.tell(difference < TOLERANCE, what)
                actual = third_party_pairs.on_server(client, name, steps)
                difference = largest_difference(actual, wanted)
                what = f"{name}: {steps} steps on {count} replicas differ by {difference:.1e}"
                report.tell(difference < TOLERANCE, what)
                if noisy:
                    runs = [
                        third_party_pairs.on_server(client, name, steps, noisy, seed=count)
                        for _ in range(2)
                    ]
                    same = training.same_bits(*runs)
                    report.tell(same, f"{name}: with dropout on {count} replicas, twice")


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    report = Report()
    for name in arguments.models:
        with tempfile.TemporaryDirectory(prefix="braid-foreign-") as directory:
            train(name, arguments.replicas, arguments.steps, Path(directory), report)
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
