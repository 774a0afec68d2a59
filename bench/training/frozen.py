"""Times training steps with all but the last layer frozen against full steps, in both formats.

    bench/training/frozen.sh

One CPU replica of one thread, and PyTorch with one thread. Every round runs all loops in turn. A
ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import braid
import torch
from bench.training.braid_loops import BraidServer
from bench.training.workloads import WORKLOADS
from torch.nn import functional

WORKLOAD = WORKLOADS["convnet"]
BODY = r"^[0-8]\b"  # All modules before the pooling.
FROZEN = {"parameter_groups": [{"pattern": BODY, "frozen": True}]}
KINDS = {
    "full": {},
    "head": FROZEN,
    "head, body in evaluation mode": FROZEN | {"eval_modules": [BODY]},
}
ROUNDS = int(os.environ.get("ROUNDS", "15"))
SECONDS = float(os.environ.get("SECONDS_EACH", "1"))


class BraidSteps:
    def __init__(self, client: braid.Client, kind: str) -> None:
        self._trainer = client.create_trainer(
            WORKLOAD.name, name=kind.replace(", ", "-").replace(" ", "-"), loss="cross_entropy",
            optimizer=WORKLOAD.optimizer, **KINDS[kind],
        )  # fmt: skip

    def step(self, x: object, target: object) -> float:
        """Returns the seconds of the backward pass."""
        return self._trainer.step({"input": x}, {"target": target}).phases["backward"]


class TorchSteps:
    def __init__(self, kind: str) -> None:
        self._module = WORKLOAD.module().train()
        for place, each in enumerate(self._module[:9]):
            each.requires_grad_(kind == "full").train("evaluation" not in kind)
        trained = [each for each in self._module.parameters() if each.requires_grad]
        self._stepper = torch.optim.SGD(trained, lr=0.01, momentum=0.9)

    def step(self, x: object, target: object) -> float:
        output = self._module(torch.from_numpy(x))
        loss = functional.cross_entropy(output, torch.from_numpy(target))
        self._stepper.zero_grad()
        start = time.perf_counter()
        loss.backward()
        seconds = time.perf_counter() - start
        self._stepper.step()
        return seconds


def run(steps: BraidSteps | TorchSteps, batches: list) -> tuple[float, float]:
    """Returns the seconds of a step and of its backward pass, on average."""
    start, count, backward = time.perf_counter(), 0, 0.0
    while time.perf_counter() - start < SECONDS:
        backward += steps.step(*batches[count % len(batches)])
        count += 1
    return (time.perf_counter() - start) / count, backward / count


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        loops: dict[tuple[str, str], BraidSteps | TorchSteps] = {}
        for format in ("pair", "torchscript"):
            repository = Path(folder) / format
            options = {"precisions": (), "eval_modules": [BODY]} if format == "pair" else {}
            example = {"input": torch.randn(4, *WORKLOAD.row)}
            braid.export(WORKLOAD.module(), example, repository / WORKLOAD.name, format, **options)
            server = BraidServer(repository, 1, Path(folder) / f"{format}-run")
            stack.callback(server.close)
            loops |= {(format, kind): BraidSteps(server.client, kind) for kind in KINDS}
        loops |= {("PyTorch", kind): TorchSteps(kind) for kind in KINDS}
        batches = WORKLOAD.batches()
        found: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in loops}
        for _ in range(ROUNDS):
            for key, steps in loops.items():
                found[key].append(run(steps, batches))
    print("| format | trained | step | ratio to full | backward | ratio to full |")
    print("|---|---|---|---|---|---|")
    for (format, kind), times in found.items():
        cells = [format, kind]
        for place in (0, 1):
            pairs = zip(times, found[format, "full"])
            ratio = statistics.median(one[place] / full[place] for one, full in pairs)
            seconds = statistics.median(one[place] for one in times)
            cells += [f"{seconds * 1e3:.2f} ms", f"{ratio:.3f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
