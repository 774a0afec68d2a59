"""Compares model formats with TorchScript.

    bench/formats/formats.sh [--short] [training] [latency] [load] [memory]

Every round runs all formats in turn, in alternating order. A ratio is the median of the rounds'
ratios. Environment: ROUNDS, and SECONDS_EACH for the duration of a run.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import braid
import numpy as np
import tritonclient.grpc as triton

from bench.common import parts
from bench.common.table import alternate, heading, row
from bench.formats import models as format_models
from bench.formats.models import BIG, FORMATS, SERVED, TARGETS, TRAINABLE, Target, named
from bench.inference.clients import load as generate_load
from bench.inference.servers import BraidServer
from bench.training.braid_loops import BraidLoop
from bench.training.workloads import Workload

MIB = 1 << 20
REPLICAS = 4
WARM_UP_STEPS = 10
# Phases of a step to print; the others take almost no time.
PHASES = ("forward", "loss", "backward", "reduce", "update", "rest")
# Maximum latency, as a multiple of TorchScript's.
LATENCY_TARGETS = {"pair": 1.05, "aot": 0.9}
MAX_LOAD_MS = 50
LOADS = 5


@dataclass(frozen=True)
class Bench:
    folder: Path
    rounds: int
    seconds: float  # duration of a run

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))


def _steps_for(loop: BraidLoop, seconds: float) -> int:
    loop.run(WARM_UP_STEPS)
    return max(3, round(seconds / (loop.run(WARM_UP_STEPS) / WARM_UP_STEPS)))


@dataclass(frozen=True)
class Steps:
    """Milliseconds per step: wall time at the client, CPU time of the server, and by phase."""

    wall: float
    cpu: float
    phases: dict[str, float]


def training(bench: Bench) -> None:
    models = bench.new_folder()
    format_models.export(models, [target.workload for target in TARGETS], TRAINABLE)
    heading("A training step on 2 replicas of one thread, through a stream", bench.rounds)
    with (
        closing(BraidServer(models, bench.new_folder())) as server,
        braid.connect(server.address) as client,
    ):
        for target in TARGETS:
            loops = [BraidLoop(client, named(target.workload, each), True) for each in TRAINABLE]
            steps = _steps_for(loops[0], bench.seconds)

            def run(loop: BraidLoop) -> Steps:
                before = server.cpu_seconds()
                wall, cpu = loop.run(steps), server.cpu_seconds() - before
                phases = {name: 1000 * each for name, each in loop.phases.items()}
                return Steps(1000 * wall / steps, 1000 * cpu / steps, phases)

            rounds = alternate(bench.rounds, *((lambda each=loop: run(each)) for loop in loops))
            _print_training(target, *zip(*rounds))


def _print_training(
    target: Target, script: tuple[Steps, ...], pair: tuple[Steps, ...]
) -> None:
    title = target.workload.title
    row(f"{title}: TorchScript, ms", [each.wall for each in script])
    row(f"{title}: pair, ms", [each.wall for each in pair])
    ratios = [one.wall / other.wall for one, other in zip(pair, script)]
    row(f"{title}: pair to TorchScript", ratios, ".3f", target.max_ratio, "≤")
    # CPU time is less affected by other load than wall time.
    ratios = [one.cpu / other.cpu for one, other in zip(pair, script)]
    row(f"{title}: CPU time of the server, pair to TorchScript", ratios, ".3f")
    times = ", ".join(
        f"{name} {_median(script, name):.2f} and {_median(pair, name):.2f}"
        for name in script[0].phases
        if name in PHASES
    )
    print(f"| {title}: ms by phase, TorchScript and pair | {times} | | | |")


def _median(steps: tuple[Steps, ...], phase: str) -> float:
    return statistics.median([each.phases[phase] for each in steps])


def _ratios(mine: list, others: list, field: int) -> list[float]:
    return [one[field] / other[field] for one, other in zip(mine, others)]


def _title(workload: Workload) -> str:
    """Returns the title without the batch size for training."""
    return workload.title.partition(", batch")[0]


def latency(bench: Bench) -> None:
    models = bench.new_folder()
    format_models.export(models, SERVED, FORMATS)
    heading("A request of one row, one at a time, one worker of one thread", bench.rounds)
    with (
        closing(BraidServer(models, bench.new_folder(), workers=1)) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        for workload in SERVED:
            names = [named(workload, format).name for format in FORMATS]

            def run(name: str) -> tuple[float, float]:
                return _latency(server.address, client, name, (1, *workload.row), bench.seconds)

            rounds = alternate(bench.rounds, *((lambda each=name: run(each)) for name in names))
            title = _title(workload)
            for index, format in enumerate(FORMATS):
                median, computed = zip(*(each[index] for each in rounds))
                row(f"{title}: {format}, p50, µs", median, ".0f")
                row(f"{title}: {format}, its forward pass, µs", computed, ".0f")
            for index, format in list(enumerate(FORMATS))[1:]:
                mine, script = ([each[i] for each in rounds] for i in (index, 0))
                label = f"{title}: {format} to TorchScript"
                row(f"{label}, p50", _ratios(mine, script, 0), ".3f", LATENCY_TARGETS[format], "≤")
                row(f"{label}, forward pass", _ratios(mine, script, 1), ".3f")


def _latency(
    address: str, client: triton.InferenceServerClient, name: str, shape: tuple, seconds: float
) -> tuple[float, float]:
    """Returns the median of a request and the server's mean compute time, in microseconds."""

    def computed() -> tuple[int, int]:
        spent = client.get_inference_statistics(name).model_stats[0].inference_stats.compute_infer
        return spent.ns, spent.count

    before = computed()
    done = generate_load(
        address, seconds, model=name, input="input", shape=shape, in_flight=1, connections=1
    )
    nanoseconds, count = (now - was for now, was in zip(computed(), before))
    return 1000 * done["completed"]["p50_ms"], nanoseconds / count / 1000


@contextmanager
def _explicit(bench: Bench, models: Path, workers: int) -> Iterator[tuple]:
    """Starts a server without loaded models. Yields the server and a client."""
    flags = ("--model_control_mode=explicit",)
    with (
        closing(BraidServer(models, bench.new_folder(), workers, flags)) as server,
        triton.InferenceServerClient(server.address) as client,
    ):
        yield server, client


def _load_ms(client: triton.InferenceServerClient, name: str) -> float:
    start = time.perf_counter()
    client.load_model(name)
    milliseconds = 1000 * (time.perf_counter() - start)
    client.unload_model(name)
    return milliseconds


def load(bench: Bench) -> None:
    models = bench.new_folder()
    format_models.export(models, [*SERVED, BIG], FORMATS)
    heading(f"RepositoryModelLoad of a file in the page cache, ms, {REPLICAS} replicas", LOADS)
    with _explicit(bench, models, REPLICAS) as (_, client):
        for workload in (*SERVED, BIG):
            names = [named(workload, format).name for format in FORMATS]
            for name in names:
                _load_ms(client, name)
            sides = [lambda each=name: _load_ms(client, each) for name in names]
            rounds = alternate(LOADS, *sides)
            for index, format in enumerate(FORMATS):
                target = MAX_LOAD_MS if format == "pair" else None
                times = [each[index] for each in rounds]
                row(f"{_title(workload)}: {format}", times, ".1f", target, "≤")


def memory(bench: Bench) -> None:
    models = bench.new_folder()
    format_models.export(models, [BIG], FORMATS)
    heading(f"Resident memory of a server, {REPLICAS} replicas of {BIG.title}, MiB", 1)
    used: dict[str, float] = {}
    for format in FORMATS:
        name = named(BIG, format).name
        with _explicit(bench, models, REPLICAS) as (server, client):
            before = server.resident_bytes()
            client.load_model(name)
            loaded = server.resident_bytes()
            _request_all(client, name)
            used[format] = server.resident_bytes() - before
            row(f"{format}: before loading", [before / MIB], ".0f")
            row(f"{format}: added by loading", [(loaded - before) / MIB], ".0f")
            row(f"{format}: added after requests to all replicas", [used[format] / MIB], ".0f")
    for format in FORMATS[1:]:
        target = 1.0 if format == "pair" else None
        row(f"{format} to TorchScript", [used[format] / used["torchscript"]], ".3f", target, "≤")


def _request_all(client: triton.InferenceServerClient, name: str) -> None:
    """Sends a few batches that are split over all replicas."""
    rows = np.zeros((64 * REPLICAS, *BIG.row), np.float32)
    request = triton.InferInput("input", rows.shape, "FP32")
    request.set_data_from_numpy(rows)
    for _ in range(8):
        client.infer(name, [request])


PARTS = {part.__name__: part for part in (training, latency, load, memory)}


def make_bench(folder: Path, short: bool) -> Bench:
    return Bench(
        folder,
        int(os.environ.get("ROUNDS", "3" if short else "9")),
        float(os.environ.get("SECONDS_EACH", "0.4" if short else "1")),
    )


def main() -> None:
    seconds = parts.run(PARTS, make_bench)
    print(f"\nTook {seconds:.0f} s; machine load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
