"""Compares jobs with plain PyTorch and pyarrow scripts, and measures requests next to jobs.

    bench/jobs/jobs.sh [--short] [training] [scoring] [requests]

Every round runs all sides in turn, in alternating order. A ratio is the median of the rounds'
ratios. A job's time is from its start to its end, so it includes opening the data, its trainer,
checkpoints and the complete output. Environment: ROUNDS, ROWS and
THREADS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import braid
from e2e.support.server import ROOT, Server

from bench.common import parts
from bench.common.table import alternate, heading, row
from bench.inference.clients import load
from bench.jobs import workloads
from bench.jobs.workloads import BATCH_SIZE, COLUMNS, SGD

THREADS = int(os.environ.get("THREADS", "2"))
# Rows per batch of the plain scoring loop.
PLAIN_BATCHES = (8_192, 65_536)
# One-row requests per second to the model "mlp".
COPIES = 100
RATE = 50
LIMIT_SECONDS = 1200


@dataclass(frozen=True)
class Bench:
    folder: Path
    rounds: int
    images: int
    epochs: int
    rows: int  # of the table
    seconds: float  # of requests

    @contextmanager
    def server(self) -> Iterator[Server]:
        """Starts a server over `folder`/data with all models and THREADS workers of one thread."""
        models, data = self.folder / "models", self.folder / "data"
        if not models.exists():
            workloads.export(models)
            data.mkdir()
        flags = ("--cpu_threads=1", f"--data_root={data}", "--max_running_jobs=2")
        directory = Path(tempfile.mkdtemp(dir=self.folder))
        with Server(models, f"cpu*{THREADS}", directory, flags) as server:
            yield server

    def write_images(self) -> Path:
        path = self.folder / "data/images.parquet"
        if not path.exists():
            workloads.write_images(path, self.images)
        return path

    def write_table(self) -> Path:
        path = self.folder / "data/table.parquet"
        if not path.exists():
            workloads.write_table(path, self.rows)
        return path


    def write_long_table(self) -> Path:
        """Links the table into a folder COPIES times, for a job that does not end during a load."""
        table, folder = self.write_table(), self.folder / "data/long"
        folder.mkdir()
        for copy in range(COPIES):
            (folder / f"{copy:03}.parquet").hardlink_to(table)
        return folder


def _train(client: braid.Client, epochs: int) -> braid.jobs.Job:
    return client.jobs.train(
        "fashion",
        data={
            "path": "images.parquet",
            "inputs": {"x": "image"},
            "targets": {"target": "label"},
        },
        loss="cross_entropy",
        optimizer={"name": "SGD", **SGD},
        epochs=epochs,
        batch_size=BATCH_SIZE,
    )


def _score(client: braid.Client, path: str = "table.parquet") -> braid.jobs.Job:
    return client.jobs.infer(
        "scorer",
        data={"path": path, "inputs": {"input": COLUMNS}},
        output={"path": "scores.parquet", "overwrite": True},
    )


@dataclass(frozen=True)
class Cost:
    """Seconds of a job or script: wall time, and CPU time of all threads."""

    wall: float
    cpu: float


def _run(server: Server, job: braid.jobs.Job) -> Cost:
    before = server.cpu_seconds()
    info = job.wait(timeout=LIMIT_SECONDS)
    return Cost((info.ended - info.started).total_seconds(), server.cpu_seconds() - before)


def _plain(*arguments: object) -> Cost:
    """Runs a plain script and returns the seconds that it measured."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.jobs.plain", *(str(each) for each in arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    return Cost(*map(float, done.stdout.split()))


def training(bench: Bench) -> None:
    title = f"Training on {bench.images:,} images, {bench.epochs} epochs"
    heading(title, bench.rounds)
    workers = (0, THREADS)
    with bench.server() as server, braid.connect(server.address) as client:
        path = bench.write_images()
        _run(server, _train(client, 1))  # warms up, and packs the rows into the row cache
        rounds = alternate(
            bench.rounds,
            lambda: _run(server, _train(client, bench.epochs)),
            *(
                lambda each=each: _plain("train", path, bench.epochs, THREADS, each)
                for each in workers
            ),
        )
    _print(rounds, [f"plain, num_workers={each}" for each in workers], target=0.95)


def scoring(bench: Bench) -> None:
    heading(f"Scoring {bench.rows:,} rows", bench.rounds)
    output = bench.folder / "plain.parquet"
    with bench.server() as server, braid.connect(server.address) as client:
        path = bench.write_table()
        path.read_bytes()  # into the page cache
        rounds = alternate(
            bench.rounds,
            lambda: _run(server, _score(client)),
            *(
                lambda each=each: _plain("score", path, output, each, THREADS)
                for each in PLAIN_BATCHES
            ),
        )
    _print(rounds, [f"plain, batches of {each:,}" for each in PLAIN_BATCHES], target=0.9)


def _print(rounds: list[tuple[Cost, ...]], names: list[str], target: float) -> None:
    job, *plain = zip(*rounds)
    row("job, s", [each.wall for each in job], ".1f")
    row("job, CPU time, s", [each.cpu for each in job], ".1f")
    for name, costs in zip(names, plain):
        row(f"{name}, s", [each.wall for each in costs], ".1f")
        row(f"{name}, CPU time, s", [each.cpu for each in costs], ".1f")
        ratios = [theirs.wall / ours.wall for ours, theirs in zip(job, costs)]
        row(f"speed relative to {name}", ratios, target=target)
        ratios = [ours.cpu / theirs.cpu for ours, theirs in zip(job, costs)]
        row(f"CPU time relative to {name}", ratios)


def requests(bench: Bench) -> None:
    heading(f"{RATE} requests per second next to jobs, p99 in ms", bench.rounds)
    with bench.server() as server, braid.connect(server.address) as client:
        bench.write_images()
        long_table = bench.write_long_table().name

        def p99() -> float:
            report = load(server.address, bench.seconds, shape=(1, 784), rate=RATE)
            return report["completed"]["p99_ms"]

        def next_to(*submit: object) -> float:
            jobs = [each() for each in submit]
            _await(lambda: all(job.info().progress.rows > 0 for job in jobs))
            try:
                measured = p99()
                states = [job.info().state for job in jobs]
                assert states == ["RUNNING"] * len(jobs), states
            finally:
                for job in jobs:
                    job.cancel()
                _await(lambda: all(job.info().has_ended for job in jobs))
            return measured

        p99()  # warms up
        train, score = (lambda: _train(client, 10_000)), (lambda: _score(client, long_table))
        sides = {
            "a scoring job": (score,),
            "a training job": (train,),
            "both": (train, score),
        }
        rounds = alternate(
            bench.rounds,
            p99,
            *(lambda each=each: next_to(*each) for each in sides.values()),
        )
    alone, *next_to_jobs = zip(*rounds)
    row("alone", alone, ".1f")
    for name, values in zip(sides, next_to_jobs):
        row(f"next to {name}", values, ".1f")
        excess = [value - 1.3 * base for value, base in zip(values, alone)]
        row(f"next to {name}, beyond 1.3 × alone", excess, ".1f", 10, "≤")


def _await(condition: object) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"jobs: no progress in {LIMIT_SECONDS} s")
        time.sleep(0.05)


PARTS = {part.__name__: part for part in (training, scoring, requests)}


def make_bench(folder: Path, short: bool) -> Bench:
    return Bench(
        folder,
        rounds=int(os.environ.get("ROUNDS", "2" if short else "5")),
        images=10_000 if short else 60_000,
        epochs=1 if short else 2,
        rows=int(os.environ.get("ROWS", "1000000" if short else "10000000")),
        seconds=1 if short else 5,
    )


def main() -> None:
    seconds = parts.run(PARTS, make_bench)
    print(f"\nTook {seconds:.0f} s; machine load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
