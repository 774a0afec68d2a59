"""Compares training steps through the server with PyTorch loops.

    bench/training/training.sh [convnet] [mlp]

Every round runs all loops in turn. A ratio is the median of the rounds' ratios. Environment:
ROUNDS, and SECONDS_EACH for the duration of a run.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from bench.common.table import spread
from bench.training.braid_loops import STREAM_DEPTH, BraidLoop, BraidServer
from bench.training.pytorch_loops import PyTorchLoop
from bench.training.workloads import WORKLOADS, Workload

ROUNDS = int(os.environ.get("ROUNDS", "9"))
SECONDS_EACH = float(os.environ.get("SECONDS_EACH", "1"))
WARM_UP_STEPS = 10

PLAIN = "PyTorch, 2 intra-op threads"
DDP = "PyTorch DDP, 2 Gloo processes"
# Upper bounds for two replicas on this machine: HALVES relative to PLAIN, and relative to WHOLE for
# the speed-up over one replica.
HALVES = "PyTorch, halves of the batch in 2 processes, no update"
WHOLE = "PyTorch, the batch in 1 process, 1 thread, no update"
# API → names of the loops with two replicas and with one.
APIS = {
    f"stream(depth={STREAM_DEPTH})": ("Braid, 2 replicas, stream", "Braid, 1 replica, stream"),
    "step()": ("Braid, 2 replicas, step", "Braid, 1 replica, step"),
}


class Loop(Protocol):
    def run(self, steps: int) -> float:
        """Runs `steps` steps and returns the seconds they took."""


class Figures:
    """Seconds per step of every loop, and the phases from Braid's replies, by round."""

    def __init__(self, loops: dict[str, Loop]) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in loops}
        self.overheads: dict[str, list[float]] = {name: [] for name in loops}
        self.phases: dict[str, list[dict[str, float]]] = {name: [] for name in loops}
        steps = {name: _steps_for(loop) for name, loop in loops.items()}
        for _ in range(ROUNDS):
            for name, loop in loops.items():
                self.seconds[name].append(loop.run(steps[name]) / steps[name])
                if isinstance(loop, BraidLoop):
                    self.overheads[name].append(loop.overhead)
                    self.phases[name].append(loop.phases)

    def speed_ups(self, name: str, other: str) -> list[float]:
        """Returns the speed-up over `other` for each round."""
        return [theirs / ours for ours, theirs in zip(self.seconds[name], self.seconds[other])]


def _steps_for(loop: Loop) -> int:
    """Returns the number of steps that takes about SECONDS_EACH."""
    loop.run(WARM_UP_STEPS)
    return max(3, round(SECONDS_EACH / (loop.run(WARM_UP_STEPS) / WARM_UP_STEPS)))


def measure(workload: Workload, folder: Path) -> Figures:
    with ExitStack() as stack:
        models = folder / "models"
        workload.export(models, "pair")
        servers = {
            replicas: stack.enter_context(
                closing(BraidServer(models, replicas, folder / f"cpu{replicas}"))
            )
            for replicas in (1, 2)
        }
        loops: dict[str, Loop] = {}
        for streaming, (two, one) in zip((True, False), APIS.values()):
            loops[two] = BraidLoop(servers[2].client, workload, streaming)
            loops[one] = BraidLoop(servers[1].client, workload, streaming)
        for name, processes, threads, alone in (
            (PLAIN, 1, 2, False),
            (DDP, 2, 1, False),
            (HALVES, 2, 1, True),
            (WHOLE, 1, 1, True),
        ):
            rendezvous = folder / f"pytorch{len(loops)}"
            loops[name] = stack.enter_context(
                closing(PyTorchLoop(workload, processes, threads, rendezvous, alone))
            )
        return Figures(loops)


def _result(value: float, target: float | None, sign: str, form: str) -> str:
    if target is None:
        return " | "
    met = value >= target if sign == "≥" else value <= target
    return f"{sign} {target:{form}} | {'yes' if met else 'no'}"


def print_ratios(workload: Workload, figures: Figures) -> None:
    print(
        f"\n| {workload.title} | two replicas | ratio | in {ROUNDS} rounds | limit | target "
        f"| met |\n|---|---|---|---|---|---|---|"
    )
    targets = workload.targets
    for api, (two, one) in APIS.items():
        for other, base, target in (
            (PLAIN, PLAIN, targets.plain),
            (one, WHOLE, targets.one_replica),
            (DDP, None, targets.ddp),
        ):
            ratios = figures.speed_ups(two, other)
            limit = f"{statistics.median(figures.speed_ups(HALVES, base)):.2f}" if base else ""
            result = _result(statistics.median(ratios), target, "≥", ".2f")
            print(
                f"| {api} | steps/s relative to {other} | {spread(ratios, '.2f')} | {limit} "
                f"| {result} |"
            )
        overheads = figures.overheads[two]
        result = _result(statistics.median(overheads), targets.overhead, "≤", ".0%")
        print(
            f"| {api} | fraction of a step outside forward, loss, backward "
            f"| {spread(overheads, '.1%')} | | {result} |"
        )


def print_times(workload: Workload, figures: Figures) -> None:
    print(f"\n| {workload.title} | ms per step | in {ROUNDS} rounds | phases from the replies |")
    print("|---|---|---|---|")
    for name, seconds in figures.seconds.items():
        milliseconds = spread([1000 * value for value in seconds], ".2f")
        phases = figures.phases[name]
        times = ", ".join(
            f"{phase} {1000 * statistics.median([each[phase] for each in phases]):.2f}"
            for phase in (phases[0] if phases else ())
        )
        print(f"| {name} | {milliseconds} | {times} |", flush=True)


def main() -> None:
    # Raises SystemExit, so that servers and other child processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in sys.argv[1:] or WORKLOADS:
        if name not in WORKLOADS:
            sys.exit(f"unknown workload {name!r} (expected {', '.join(WORKLOADS)})")
        with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
            figures = measure(WORKLOADS[name], Path(folder))
        print_ratios(WORKLOADS[name], figures)
        print_times(WORKLOADS[name], figures)


if __name__ == "__main__":
    main()
