"""Clients of bench/inference: Triton's perf_analyzer, and bench/load for other cases."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from e2e.support.server import BINARY, ROOT, cpu_seconds

LOAD = BINARY.with_name("braid-bench-load")
BARE = BINARY.with_name("braid-bench-bare")
# Measurement windows of perf_analyzer per run. Alternating rounds replace its stability criterion.
WINDOWS = 3
_EXTRA_SECONDS = 120


@dataclass(frozen=True)
class Point:
    """Result of perf_analyzer at one setting. Rate in rows per second, latencies in
    milliseconds."""

    rate: float
    p50: float
    p99: float


def _run(command: list, seconds: float) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=seconds + _EXTRA_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def perf_analyzer(address: str, batch: int, clients: int, seconds: float) -> Point:
    """Measures the model "mlp" for about `seconds` seconds."""
    output = _run(
        [
            *(ROOT / "scripts/perf_analyzer.sh", "-m", "mlp", "-i", "grpc", "-u", address),
            *("-b", batch, f"--concurrency-range={clients}"),
            f"--measurement-interval={max(200, round(1000 * seconds / WINDOWS))}",
            *("--stability-percentage=999", f"--max-trials={WINDOWS}"),
        ],
        seconds,
    )

    def value(pattern: str) -> float:
        found = re.search(pattern, output)
        if found is None:
            raise RuntimeError(f"perf_analyzer: {output}")
        return float(found[1])

    return Point(
        value(r"Throughput: ([\d.]+) infer/sec"),
        value(r"p50 latency: (\d+) usec") / 1000,
        value(r"p99 latency: (\d+) usec") / 1000,
    )


def load(address: str, seconds: float = 0, **options: object) -> dict:
    """Runs braid-bench-load and returns its report. options are its flags; shape is a tuple."""
    flags = []
    for name, value in options.items():
        if isinstance(value, tuple):
            value = ",".join(str(each) for each in value)
        if value is not False:
            flags.append(f"--{name}" if value is True else f"--{name}={value}")
    limit = 1200 if "requests" in options else seconds
    return json.loads(
        _run([LOAD, f"--server={address}", f"--seconds={seconds}", *flags], limit)
    )


def bare_cpu_seconds(model: object, batch: int, threads: int, seconds: float) -> float:
    """Returns the CPU seconds per row of LibTorch loops in `threads` parallel threads."""
    return float(_run([*_bare(model, batch, threads), f"--seconds={seconds}"], seconds))


@contextmanager
def busy_cores(model: object, batch: int, threads: int, features: int = 784) -> Iterator[None]:
    """Runs the same loops in the background while the context is open."""
    command = [*_bare(model, batch, threads), f"--features={features}", "--seconds=600"]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL) as loop:
        try:
            while cpu_seconds(loop.pid) < 1:  # loads LibTorch and the model first
                if loop.poll() is not None:
                    raise RuntimeError(f"{BARE} ended: {loop.returncode}")
                time.sleep(0.05)
            yield
        finally:
            loop.kill()


def _bare(model: object, batch: int, threads: int) -> list:
    return [BARE, f"--path={model}", f"--batch={batch}", f"--threads={threads}"]
