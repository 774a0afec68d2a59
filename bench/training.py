"""Training steps through the server against PyTorch's own loops, as ratios in one run.

    bench/training.sh [convnet] [mlp]

Every round runs all of them, one after the other; a ratio is the median over the rounds of the
ratio within each. In the environment: ROUNDS, and SECONDS_EACH for a run.
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

from braid_loops import STREAM_DEPTH, BraidLoop, BraidServer
from pytorch_loops import PyTorchLoop
from training_workloads import WORKLOADS, Workload

ROUNDS = int(os.environ.get("ROUNDS", "9"))
SECONDS_EACH = float(os.environ.get("SECONDS_EACH", "1"))
WARM_UP_STEPS = 10

PLAIN = "PyTorch, 2 intra-op threads"
DDP = "PyTorch DDP, 2 Gloo processes"
# The first against the plain loop, and against the second, is what two replicas can come to on this
# machine at most, of the plain loop and of one replica.
HALVES = "PyTorch, halves of the batch in 2 processes, no update"
WHOLE = "PyTorch, the batch in 1 process, 1 thread, no update"
# Way of calling → what two replicas and one are called.
WAYS = {
    f"stream(depth={STREAM_DEPTH})": ("Braid, 2 replicas, stream", "Braid, 1 replica, stream"),
    "step()": ("Braid, 2 replicas, step", "Braid, 1 replica, step"),
}

class Loop(Protocol):
    def run(self, steps: int) -> float:
        """Seconds for so many steps."""


class Figures:
    """Seconds a step of every loop, and what Braid's replies told, by round."""

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
        """By round: how many times as fast as the other."""
        return [theirs / ours for ours, theirs in zip(self.seconds[name], self.seconds[other])]


def _steps_for(loop: Loop) -> int:
    """Steps that take about SECONDS_EACH."""
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
        for streaming, (two, one) in zip((True, False), WAYS.values()):
            loops[two] = BraidLoop(servers[2].client, workload, streaming)
            loops[one] = BraidLoop(servers[1].client, workload, streaming)
        for name, processes, threads, alone in (
            (PLAIN, 1, 2, False),
            (DDP, 2, 1, False),
            (HALVES, 2, 1, True),
            (WHOLE, 1, 1, True),
        ):
            meeting = folder / f"pytorch{len(loops)}"
            loops[name] = stack.enter_context(
                closing(PyTorchLoop(workload, processes, threads, meeting, alone))
            )
        return Figures(loops)


def _spread(values: list[float], form: str) -> str:
    """Median, and the least and the most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} | {least:{form}} to {most:{form}}"


def _verdict(value: float, line: float | None, sign: str, form: str) -> str:
    if line is None:
        return " | "
    reached = value >= line if sign == "≥" else value <= line
    return f"{sign} {line:{form}} | {'yes' if reached else 'no'}"


def print_ratios(workload: Workload, figures: Figures) -> None:
    print(
        f"\n| {workload.title} | of two replicas | ratio | in {ROUNDS} rounds | at most | line "
        f"| reached |\n|---|---|---|---|---|---|---|"
    )
    lines = workload.lines
    for way, (two, one) in WAYS.items():
        for other, least, line in (
            (PLAIN, PLAIN, lines.plain),
            (one, WHOLE, lines.one_replica),
            (DDP, None, lines.ddp),
        ):
            ratios = figures.speed_ups(two, other)
            most = f"{statistics.median(figures.speed_ups(HALVES, least)):.2f}" if least else ""
            verdict = _verdict(statistics.median(ratios), line, "≥", ".2f")
            print(f"| {way} | steps/s to {other} | {_spread(ratios, '.2f')} | {most} | {verdict} |")
        overheads = figures.overheads[two]
        verdict = _verdict(statistics.median(overheads), lines.overhead, "≤", ".0%")
        print(
            f"| {way} | of a step outside forward, loss, backward "
            f"| {_spread(overheads, '.1%')} | | {verdict} |"
        )


def print_times(workload: Workload, figures: Figures) -> None:
    print(f"\n| {workload.title} | ms a step | in {ROUNDS} rounds | by the replies' phases |")
    print("|---|---|---|---|")
    for name, seconds in figures.seconds.items():
        milliseconds = _spread([1000 * value for value in seconds], ".2f")
        phases = figures.phases[name]
        told = ", ".join(
            f"{phase} {1000 * statistics.median([each[phase] for each in phases]):.2f}"
            for phase in (phases[0] if phases else ())
        )
        print(f"| {name} | {milliseconds} | {told} |", flush=True)


def main() -> None:
    # So that whatever was started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    for name in sys.argv[1:] or WORKLOADS:
        if name not in WORKLOADS:
            sys.exit(f"no workload {name!r}: {', '.join(WORKLOADS)}")
        with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
            figures = measure(WORKLOADS[name], Path(folder))
        print_ratios(WORKLOADS[name], figures)
        print_times(WORKLOADS[name], figures)


if __name__ == "__main__":
    main()
