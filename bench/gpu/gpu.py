"""Compares inference, training and publishing on a GPU with PyTorch loops.

    PYTHONPATH=client/python:tests python -m bench.gpu.gpu [OPTION...] [PART...]

Needs a server (BRAID_SERVER_BINARY; default: build/release/bin/braid-server) with braid-bench-load
in the same folder, PyTorch and the `braid` package. Parts: inference, training, publish, gaps, and
export, which only exports the models. In each round all sides take turns; a ratio is the median of
the rounds' ratios.

`--devices 'cpu*2' --small` runs all of it on the CPU with small models in about a minute. That
checks the program; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import braid
import numpy as np
import torch
from e2e.support import programs
from e2e.support.metrics import scrape
from e2e.support.server import Server
from e2e.support.polling import wait_until

from bench.common.table import alternate, spread
from bench.gpu import loops as gpu_loops
from bench.gpu import models as gpu_models
from bench.gpu import trace as gpu_trace
from bench.inference.clients import load as send

CLIENTS = 8
# torch.export rejects batches of any size, because cuDNN's batch norm has a limit.
LARGEST_BATCH = 1024
STREAM_DEPTH = 2
WARM_UP_STEPS = 4
# Steps that `--profile` records, and those that it skips first.
PROFILED_STEPS = 10
PROFILE_AFTER = 3
TRACE_SECONDS = 60
BUSY_SAMPLE_SECONDS = 0.2

SGD = {"name": "SGD", "lr": 0.01, "momentum": 0.9}
ADAMW = {"name": "AdamW", "lr": 1e-5, "weight_decay": 0.01}
OPTIMIZERS = {"resnet50": SGD, "bert": ADAMW}


@dataclass(frozen=True)
class Point:
    """Case to measure. compiled: also measures torch.compile, which takes up to a minute."""

    model: str
    precision: str
    rows: int
    compiled: bool = True


@dataclass(frozen=True)
class Plan:
    """Cases to measure. seconds: for each side in each round."""

    inference: tuple[Point, ...]
    training: tuple[Point, ...]
    rounds: int
    seconds: float


def _points(rows: dict[str, tuple[int, ...]], precisions: tuple[str, ...]) -> tuple[Point, ...]:
    return tuple(
        Point(model, precision, count)
        for model, counts in rows.items()
        for precision in precisions
        for count in counts
    )


PLANS = {
    "full": Plan(
        _points(
            dict.fromkeys(("mlp", "resnet50", "bert"), (1, 8, 32, 128, 256)),
            tuple(gpu_models.PRECISIONS),
        ),
        (Point("resnet50", "bfloat16", 128), Point("bert", "bfloat16", 64)),
        rounds=5,
        seconds=2.0,
    ),
    "short": Plan(
        (
            Point("mlp", "float32", 1, compiled=False),
            Point("resnet50", "bfloat16", 64, compiled=False),
            Point("bert", "bfloat16", 1, compiled=False),
            Point("bert", "bfloat16", 64, compiled=False),
            Point("resnet50", "tf32", 64, compiled=False),
        ),
        (
            Point("resnet50", "bfloat16", 128, compiled=False),
            Point("bert", "bfloat16", 64, compiled=False),
        ),
        rounds=2,
        seconds=0.7,
    ),
    "small": Plan(
        (
            Point("mlp", "float32", 1),
            Point("mlp", "tf32", 16),
            Point("resnet50", "bfloat16", 4),
            Point("bert", "bfloat16", 4),
        ),
        (Point("resnet50", "bfloat16", 8), Point("bert", "bfloat16", 8)),
        rounds=2,
        seconds=0.1,
    ),
}


@dataclass
class Figure:
    """A measure of each side, by round. Side "Braid" is compared with the others."""

    part: str
    case: str
    measure: str
    sides: dict[str, list[float]]
    notes: dict[str, object] = field(default_factory=dict)

    def ratios(self, other: str) -> list[float]:
        return [
            ours / theirs if theirs else math.inf
            for ours, theirs in zip(self.sides["Braid"], self.sides[other])
        ]


HEADING = (
    "| case | measure | Braid | eager | Braid to eager | rounds | compiled | Braid to compiled "
    "| rounds |\n|---|---|---|---|---|---|---|---|---|"
)


def table_row(figure: Figure) -> str:
    cells = [figure.case, figure.measure, f"{statistics.median(figure.sides['Braid']):.4g}"]
    for other in ("eager", "compiled"):
        if other in figure.sides:
            theirs = statistics.median(figure.sides[other])
            cells.append(f"{theirs:.4g} | {spread(figure.ratios(other), '.2f')}")
        else:
            cells.append(" | | ")
    return f"| {' | '.join(cells)} |"


class Bench:
    """Options, folders, packages and figures that the parts share."""

    def __init__(self, options: argparse.Namespace, plan: Plan, folder: Path) -> None:
        self.options = options
        self.plan = plan
        self.models = gpu_models.SMALL if options.small else gpu_models.FULL
        self.device = torch.device(options.devices.partition(",")[0].partition("*")[0])
        self.figures: list[Figure] = []
        self._folder = folder

    def others(self, point: Point) -> list[str]:
        """Sides that Braid is compared with."""
        compiled = point.compiled and not self.options.no_compile
        return ["eager", "compiled"] if compiled else ["eager"]

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def server(self, repository: Path, *flags: str) -> Server:
        if self.device.type == "cpu":
            flags += ("--cpu_threads=1",)
        return Server(repository, self.options.devices, self.new_folder(), flags)

    def trainable(self) -> Path:
        """Returns a repository with a pair of each model that is trained, in bfloat16 too."""
        return self._exported("pairs", self._export_pairs)

    def servable(self) -> Path:
        """Returns a repository with an exported program for each model and dtype of the plan."""
        return self._exported("programs", self._export_programs)

    def _exported(self, name: str, export: Callable[[Path], None]) -> Path:
        """Returns the repository, exported by the first call or by an earlier run."""
        repository = (self.options.packages or self._folder) / name
        if not repository.exists():
            draft = repository.with_suffix(".draft")
            shutil.rmtree(draft, ignore_errors=True)  # left by an interrupted run
            draft.mkdir(parents=True)
            export(draft)
            draft.rename(repository)
        return repository

    def _export_pairs(self, repository: Path) -> None:
        names = [point.model for point in self.plan.training]
        # Exporting uses one core, so runs in parallel. Spawned, because CUDA does not survive a
        # fork.
        with ProcessPoolExecutor(len(names), get_context("spawn")) as pool:
            jobs = [
                pool.submit(_export_pair, self.models[name], repository, str(self.device))
                for name in names
            ]
            for job in jobs:
                job.result()

    def _export_programs(self, repository: Path) -> None:
        for name, dtype in sorted({(p.model, _dtype(p.precision)) for p in self.plan.inference}):
            model = self.models[name]
            module = gpu_models.InPrecision(model.module(), gpu_models.PRECISIONS[dtype])
            example = [torch.from_numpy(model.rows(3)).to(self.device)]
            path = repository / f"{name}_{dtype}/1/model.pt2"
            sizes = programs.any_batch(example, max=LARGEST_BATCH)
            programs.save(path, module.to(self.device), example, sizes)

    def record(self, figure: Figure) -> None:
        self.figures.append(figure)
        print(table_row(figure), flush=True)
        if self.options.json:
            self.options.json.write_text(json.dumps(self._report(), indent=1))

    def _report(self) -> dict:
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        figures = [
            {
                **asdict(figure),
                "ratios": {side: figure.ratios(side) for side in figure.sides if side != "Braid"},
            }
            for figure in self.figures
        ]
        return {
            "devices": self.options.devices,
            "gpu": gpu,
            "small_models": self.options.small,
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
            "figures": figures,
        }


def _dtype(precision: str) -> str:
    return "float32" if precision == "tf32" else precision


def _export_pair(model: gpu_models.Model, repository: Path, device: str) -> None:
    torch.set_num_threads(1)
    example = {"input": torch.from_numpy(model.rows(3)).to(device)}
    module = model.module().to(device)
    braid.export(module, example, repository / model.name, "pair", precisions=["bfloat16"])


def _latencies(call: gpu_loops.Call, seconds: float) -> list[float]:
    """Seconds of each call, one after another."""
    taken = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def _parallel_rate(call: gpu_loops.Call, seconds: float) -> float:
    """Calls per second of CLIENTS threads."""
    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        done = pool.map(lambda _: len(_latencies(call, seconds)), range(CLIENTS))
    return sum(done) / (time.perf_counter() - start)


class BusyMeter:
    """Mean GPU utilization (NVML) while the context is open, from the server's metrics; None
    without a GPU."""

    def __init__(self, server: Server) -> None:
        self._url = server.metrics_url
        self._stop = threading.Event()
        self._samples: list[float] = []
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> BusyMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def share(self) -> float | None:
        return statistics.mean(self._samples) if self._samples else None

    def _sample(self) -> None:
        while not self._stop.wait(BUSY_SAMPLE_SECONDS):
            metrics = scrape(self._url)
            slots = metrics.labels_of("braid_device_info")
            for labels in metrics.labels_of("braid_gpu_utilization_ratio"):
                if labels["uuid"] == slots[0]["uuid"]:
                    self._samples.append(metrics.value("braid_gpu_utilization_ratio", **labels))


def inference(bench: Bench) -> None:
    for tf32 in (False, True):
        points = [p for p in bench.plan.inference if (p.precision == "tf32") is tf32]
        if not points:
            continue
        with bench.server(bench.servable(), *(["--tf32"] if tf32 else [])) as server:
            with braid.connect(server.address) as client:
                for status in client.models():
                    if status.reason:
                        print(f"{status.name}: {status.state}: {status.reason}", file=sys.stderr)
                for point in points:
                    _measure_inference(bench, server, client, point)


def _measure_inference(
    bench: Bench, server: Server, client: braid.Client, point: Point
) -> None:
    model = bench.models[point.model]
    rows = model.rows(point.rows)
    name = f"{point.model}_{_dtype(point.precision)}"
    seconds = bench.plan.seconds

    def ask() -> np.ndarray:
        return client.infer(name, {"input": rows})["output__0"]

    loops = _working_sides(
        {
            side: lambda side=side: gpu_loops.inference(
                model, point.precision, rows, bench.device, compiled=side == "compiled"
            )
            for side in bench.others(point)
        }
    )
    _parallel_rate(ask, 0)
    busy: dict[str, list[float]] = {}

    def alone(call: gpu_loops.Call) -> list[float]:
        return _latencies(call, seconds)

    def measured(side: str, run: Callable[[], object]) -> object:
        with BusyMeter(server) as meter:
            result = run()
        if meter.share is not None:
            busy.setdefault(side, []).append(meter.share)
        return result

    def load(in_flight: int) -> dict:
        return send(
            server.address,
            seconds,
            model=name,
            input="input",
            shape=rows.shape,
            in_flight=in_flight,
            connections=in_flight,
        )

    # The threads of a Python client share one interpreter, so a C++ client sends requests as well.
    reports: dict[int, Sequence[dict]] = {}
    if rows.dtype == np.float32:
        counts = (1, CLIENTS)
        by_count = zip(*alternate(bench.plan.rounds, *(partial(load, count) for count in counts)))
        reports = dict(zip(counts, by_count))
    results = alternate(
        bench.plan.rounds,
        lambda: alone(ask),
        lambda: measured("Braid", lambda: _parallel_rate(ask, seconds)),
        *(
            (lambda side=side, loop=loop: measured(side, lambda: alone(loop)))
            for side, loop in loops.items()
        ),
    )
    one_client, many_clients, *by_loop = zip(*results)
    case = f"{point.model}, {point.precision}, batch {point.rows}"
    medians = {
        side: [1000 * statistics.median(taken) for taken in rounds]
        for side, rounds in zip(("Braid", *loops), (one_client, *by_loop))
    }
    bench.record(Figure("inference", case, "one client, p50, ms", medians))
    rates = {"Braid": [point.rows * rate for rate in many_clients]}
    for side, rounds in zip(loops, by_loop):
        rates[side] = [point.rows * len(taken) / sum(taken) for taken in rounds]
    notes = {"gpu_busy": busy, "difference": _difference(ask(), loops)}
    bench.record(Figure("inference", case, f"{CLIENTS} clients, rows/s", rates, notes))
    if "Braid" in busy:
        bench.record(Figure("inference", case, f"{CLIENTS} clients, GPU busy", busy))
    if reports:
        latencies = [report["completed"]["p50_ms"] for report in reports[1]]
        completed = [
            point.rows * report["completed"]["count"] / report["seconds"]
            for report in reports[CLIENTS]
        ]
        sides = medians | {"Braid": latencies}
        bench.record(Figure("inference", case, "one C++ client, p50, ms", sides))
        sides = rates | {"Braid": completed}
        bench.record(Figure("inference", case, f"{CLIENTS} C++ clients, rows/s", sides))


def _difference(outputs: np.ndarray, loops: dict[str, gpu_loops.Call]) -> float:
    """Largest difference between Braid's outputs and the eager loop's, relative to the largest."""
    wanted = loops["eager"]().numpy()
    return float(np.abs(outputs - wanted).max() / np.abs(wanted).max())


def _working_sides(makers: dict[str, Callable[[], gpu_loops.Call]]) -> dict[str, gpu_loops.Call]:
    """Makes and warms up the loops. Reports and skips a compiled one that PyTorch cannot
    compile."""
    loops = {}
    for side, make in makers.items():
        try:
            loop = make()
            for _ in range(3):
                loop()
        except Exception:
            if side != "compiled":
                raise
            print(f"compiled: skipped\n{traceback.format_exc()}", file=sys.stderr)
            continue
        loops[side] = loop
    return loops


class BraidTraining:
    """Steps of a trainer through a stream."""

    def __init__(self, client: braid.Client, model: gpu_models.Model, point: Point) -> None:
        self._batches = gpu_loops.training_batches(model, point.rows)
        self.trainer = client.create_trainer(
            point.model,
            loss="cross_entropy",
            optimizer=OPTIMIZERS[point.model],
            precision=point.precision,
        )

    def run(self, steps: int) -> float:
        """Returns the seconds that `steps` steps take."""
        start = time.perf_counter()
        with self.trainer.stream(depth=STREAM_DEPTH) as stream:
            for step in range(steps):
                x, target = self._batches[step % len(self._batches)]
                stream.step({"input": x}, {"target": target})
        return time.perf_counter() - start


def _training_loop(bench: Bench, point: Point, side: str) -> gpu_loops.Training:
    return gpu_loops.Training(
        bench.models[point.model],
        OPTIMIZERS[point.model],
        point.rows,
        bench.device,
        compiled=side == "compiled",
    )


def _training_loops(bench: Bench, point: Point) -> dict[str, gpu_loops.Training]:
    loops = {side: _training_loop(bench, point, side) for side in bench.others(point)}
    # A loop is compiled in its first step.
    working = _working_sides(
        {side: lambda loop=loop: lambda: loop.run(1) for side, loop in loops.items()}
    )
    return {side: loops[side] for side in working}


def training(bench: Bench) -> None:
    gpu_loops.set_tf32(False)
    with bench.server(bench.trainable()) as server, braid.connect(server.address) as client:
        for point in bench.plan.training:
            runs = {"Braid": BraidTraining(client, bench.models[point.model], point)}
            runs.update(_training_loops(bench, point))
            steps = {}
            for side, loop in runs.items():
                loop.run(WARM_UP_STEPS)
                taken = loop.run(WARM_UP_STEPS) / WARM_UP_STEPS
                steps[side] = max(3, round(bench.plan.seconds / taken))
            results = alternate(
                bench.plan.rounds,
                *((lambda side=side: runs[side].run(steps[side])) for side in runs),
            )
            rates = {
                side: [point.rows * steps[side] / seconds for seconds in rounds]
                for side, rounds in zip(runs, zip(*results))
            }
            case = f"{point.model}, {point.precision}, batch {point.rows}"
            bench.record(Figure("training", case, "rows/s", rates))
            runs["Braid"].trainer.delete()


def publish(bench: Bench) -> None:
    """Compares publishing with writing the weights and loading them into another module."""
    point = next(p for p in bench.plan.training if p.model == "bert")
    model = bench.models["bert"]
    parameters = sum(each.numel() for each in model.module().parameters())
    loop = _training_loop(bench, point, "eager")
    folder = bench.new_folder()
    with bench.server(bench.trainable()) as server, braid.connect(server.address) as client:
        run = BraidTraining(client, model, point)

        def publish_once() -> float:
            run.run(1)
            start = time.perf_counter()
            run.trainer.publish(wait_durable=True)
            return time.perf_counter() - start

        results = alternate(
            bench.plan.rounds, publish_once, lambda: loop.save_and_load(folder / "weights.pt")
        )
        ours, theirs = (list(each) for each in zip(*results))
        case = f"bert, {parameters / 1e6:.3g} M parameters"
        bench.record(Figure("publish", case, "publish, s", {"Braid": ours, "eager": theirs}))


def gaps(bench: Bench) -> None:
    """Measures the time between kernels in training steps, from a profile of each side."""
    steps = PROFILE_AFTER + PROFILED_STEPS
    for point in bench.plan.training:
        traces = {"Braid": bench.new_folder() / "trace.json"}
        flags = (f"--profile={traces['Braid']}", f"--profile_steps={PROFILED_STEPS}")
        with bench.server(bench.trainable(), *flags) as server:
            with braid.connect(server.address) as client:
                # One more step, because the recording ends in the next operation.
                BraidTraining(client, bench.models[point.model], point).run(steps + 1)
                wait_until(lambda: _is_whole(traces["Braid"]), TRACE_SECONDS)
        for side, loop in _training_loops(bench, point).items():
            loop.run(WARM_UP_STEPS)
            traces[side] = bench.new_folder() / "trace.json"
            with gpu_loops.chrome_trace(traces[side], bench.device):
                loop.run(PROFILED_STEPS)
        found = {side: gpu_trace.occupancy(path) for side, path in traces.items()}
        case = f"{point.model}, {point.precision}, batch {point.rows}"
        for measure, value in (
            ("GPU busy in steps", lambda each: each.busy),
            (
                "gaps between kernels, ms per step",
                lambda each: each.total_gap / 1e3 / PROFILED_STEPS,
            ),
            ("gaps between kernels, number per step", lambda each: each.gaps / PROFILED_STEPS),
            ("gap between kernels, median, µs", lambda each: each.median_gap),
        ):
            sides = {side: [value(each)] for side, each in found.items()}
            bench.record(Figure("gaps", case, measure, sides))


def _is_whole(trace: Path) -> bool:
    """Returns whether the server has written all of the trace."""
    try:
        json.loads(trace.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return True


def export(bench: Bench) -> None:
    """Only exports the models, for later runs with the same `--packages`."""
    bench.servable()
    bench.trainable()


MEASURED = (inference, training, publish, gaps)
PARTS = {part.__name__: part for part in (*MEASURED, export)}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.gpu.gpu",
        description="Measures a server on a GPU against PyTorch's own loops.",
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all except export)"
    )
    parser.add_argument("--devices", default="cuda:0", help="devices (default: cuda:0)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="fewer cases and shorter rounds")
    size.add_argument(
        "--small", action="store_true", help="use small models, to test the benchmark itself"
    )
    parser.add_argument("--no_compile", action="store_true", help="skip torch.compile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument(
        "--packages", type=Path, metavar="DIR", help="keep exported models in DIR and reuse them"
    )
    options = parser.parse_args(arguments)
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"unknown part {part!r} (expected {', '.join(PARTS)})")
    return options


@contextmanager
def _reported(part: str, failed: list[str]) -> Iterator[None]:
    """Reports an exception and continues with the next part."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        failed.append(part)


def main() -> None:
    options = parse(sys.argv[1:])
    # Raises SystemExit, so that servers and other child processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    plan = PLANS["short" if options.short else "small" if options.small else "full"]
    failed: list[str] = []
    start = time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        bench = Bench(options, plan, Path(folder))
        print(HEADING)
        for part in options.parts or [measured.__name__ for measured in MEASURED]:
            with _reported(part, failed):
                PARTS[part](bench)
    print(f"\nTook {time.monotonic() - start:.0f} s; machine load {os.getloadavg()[0]:.1f}.")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
