"""Compares inference through the server with PyTriton, bare LibTorch and bare gRPC.

    bench/inference/inference.sh [--short] [peers] [cpu] [split] [transport] [overload] [memory]

Every round runs all sides in turn, in alternating order. A ratio is the median of the rounds'
ratios. Environment: ROUNDS, and SECONDS_EACH for the duration of a run.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from e2e.support.server import BINARY

from bench.common import parts
from bench.common.table import alternate, heading, row
from bench.inference import models as inference_models
from bench.inference.clients import Point, bare_cpu_seconds, busy_cores, load, perf_analyzer
from bench.inference.servers import (
    PYTRITON_PYTHON,
    BraidServer,
    EchoServer,
    MinimalServer,
    start_pytriton,
)

MIB = 1 << 20
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Bench:
    models: Path
    mlp: Path
    folder: Path
    rounds: int
    seconds: float  # duration of a run
    requests: tuple[int, int]  # numbers of requests between the memory measurements

    def server(self, workers: int = 2, flags: tuple = ()) -> BraidServer:
        return BraidServer(self.models, self.new_folder(), workers, flags)

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def alternate(self, *sides: Callable) -> list[tuple]:
        return alternate(self.rounds, *sides)


def peers(bench: Bench) -> None:
    if not PYTRITON_PYTHON.exists():
        print("\npeers: skipped, PyTriton is not installed (see bench/inference/inference.sh)")
        return
    # (batch, clients) → minimum throughput, as a multiple of PyTriton's.
    targets = {(1, 1): None, (1, 8): 8, (1, 32): None, (32, 8): 4.5, (256, 4): None}
    with (
        closing(
            start_pytriton(bench.mlp, inference_models.MAX_BATCH, bench.new_folder)
        ) as pytriton,
        closing(bench.server()) as braid,
        closing(MinimalServer(bench.new_folder(), bench.mlp)) as minimal,
        closing(MinimalServer(bench.new_folder())) as grpc_alone,
    ):
        servers = (braid, pytriton, minimal, grpc_alone)
        heading("Against PyTriton, perf_analyzer", bench.rounds)
        for (batch, clients), target in targets.items():

            def run(address: str) -> Callable:
                return lambda: perf_analyzer(address, batch, clients, bench.seconds)

            for each in servers:
                perf_analyzer(each.address, batch, clients, 0.5)
            results = bench.alternate(*(run(each.address) for each in servers))
            p50_target = 0.1 if (batch, clients) == (1, 1) else None
            print_point(
                f"batch {batch}, {clients} client{'s' if clients > 1 else ''}",
                dict(zip(("Braid", "PyTriton", "minimal server", "gRPC alone"), zip(*results))),
                target,
                p50_target,
            )


def print_point(
    name: str,
    results: dict[str, tuple[Point, ...]],
    rate_target: float | None,
    p50_target: float | None,
) -> None:
    """Prints each server's results and their ratios to PyTriton's. The targets apply to Braid."""

    def print_server(who: str, rate: float | None = None, p50: float | None = None) -> None:
        pairs = list(zip(results[who], results["PyTriton"]))
        row(f"{name}: {who}, samples/s", [a.rate for a, _ in pairs], ".0f")
        row(f"{name}: {who}, samples/s, ratio", [a.rate / b.rate for a, b in pairs], target=rate)
        row(f"{name}: {who}, p50, ratio", [a.p50 / b.p50 for a, b in pairs], ".3f", p50, "≤")

    row(f"{name}: PyTriton, samples/s", [point.rate for point in results["PyTriton"]], ".0f")
    print_server("Braid", rate_target, p50_target)
    pairs = zip(results["Braid"], results["PyTriton"])
    row(f"{name}: Braid, p99, ratio", [a.p99 / b.p99 for a, b in pairs], ".3f", 1, "≤")
    print_server("minimal server")
    print_server("gRPC alone")


def offers_shared_memory() -> bool:
    flags = subprocess.run([str(BINARY), "--help"], capture_output=True, text=True, check=True)
    return "--allow_client_shared_memory" in flags.stdout


def cpu(bench: Bench) -> None:
    shared = offers_shared_memory()
    flags = ("--allow_client_shared_memory",) if shared else ()
    heading("Server's CPU seconds per row, relative to a bare LibTorch loop", bench.rounds)
    with (
        closing(bench.server(flags=flags)) as braid,
        closing(MinimalServer(bench.new_folder())) as grpc_alone,
    ):
        for batch, clients, memory, target in (
            (32, 8, False, 1.25),
            (256, 4, False, 1.15),
            (32, 8, True, 1.05),
            (256, 4, True, 1.05),
        ):
            if memory and not shared:
                print(f"| batch {batch}, shared memory: not supported by the server | | | | |")
                continue
            options = {"shape": (batch, 784), "connections": clients, "shared_memory": memory}

            def closed_loop(server: BraidServer | MinimalServer) -> dict:
                return served(server, bench.seconds, **options, in_flight=clients)

            rate = per_second(closed_loop(braid), "completed")

            def next_to_loops() -> dict:
                with busy_cores(bench.mlp, batch, CORES):
                    return served(grpc_alone, bench.seconds, **options, rate=rate)

            def per_row(done: dict) -> float:
                return cpu_seconds_per_request(done, "completed") / batch

            results = bench.alternate(
                lambda: per_row(closed_loop(braid)),
                lambda: bare_cpu_seconds(bench.mlp, batch, 2, bench.seconds),
                lambda: bare_cpu_seconds(bench.mlp, batch, 1, bench.seconds),
                lambda: per_row(closed_loop(grpc_alone)),
                lambda: per_row(next_to_loops()),
            )
            name = f"batch {batch}, {clients} clients" + (", shared memory" if memory else "")
            row(f"{name}: Braid, µs per row", [1e6 * b for b, *_ in results])
            both = [ours / bare for ours, bare, *_ in results]
            row(f"{name}: ratio to loops in 2 threads", both, ".2f", target, "≤")
            row(f"{name}: ratio to a single loop", [ours / bare for ours, _, bare, *_ in results])
            both = [alone / bare for _, bare, _, alone, _ in results]
            row(f"{name}: gRPC alone, ratio to loops in 2 threads", both)
            both = [busy / bare for _, bare, _, _, busy in results]
            row(f"{name}: the same next to loops, {rate:.0f} requests/s", both)


def split(bench: Bench) -> None:
    heading("One request of 4,096 rows, one at a time", bench.rounds)
    with (
        closing(bench.server(workers=1)) as one,
        closing(bench.server(workers=2)) as two,
        closing(MinimalServer(bench.new_folder())) as grpc_alone,
    ):

        def run(address: str) -> Callable:
            options = {"shape": (4096, 784), "in_flight": 1}
            return lambda: load(address, bench.seconds, **options)["completed"]["p50_ms"]

        def bare(batch: int, threads: int) -> Callable:
            return lambda: bare_cpu_seconds(bench.mlp, batch, threads, bench.seconds)

        results = bench.alternate(
            *(run(server.address) for server in (one, two, grpc_alone)),
            *(bare(4096, 1), bare(2048, 2)),
        )
    row("1 worker, ms", [o for o, _, _, _, _ in results])
    row("2 workers, ms", [t for _, t, _, _, _ in results])
    row("2 workers, speed-up", [o / t for o, t, _, _, _ in results], target=1.8)
    row("gRPC alone, ms", [g for _, _, g, _, _ in results])
    row("bare loops in 2 threads, speed-up over one", [2 * a / b for _, _, _, a, b in results])
    limit = [o / (g + (o - g) * b / (2 * a)) for o, _, g, a, b in results]
    row("limit: that speed-up for all but gRPC alone", limit)


def transport(bench: Bench) -> None:
    heading("64 MiB through a model that returns its input, one at a time", bench.rounds)
    with closing(bench.server()) as braid, closing(EchoServer(bench.new_folder())) as echo:

        def run(address: str) -> Callable:
            options = {"model": "identity", "shape": (16 * MIB,), "in_flight": 1}

            def rate() -> float:
                return 64 * per_second(load(address, bench.seconds, **options), "completed")

            return rate

        results = bench.alternate(run(braid.address), run(echo.address))
    row("Braid, MiB/s", [b for b, _ in results], ".0f")
    row("gRPC alone, an echo, MiB/s", [e for _, e in results], ".0f")
    row("ratio", [b / e for b, e in results], target=0.7)


def overload(bench: Bench) -> None:
    # Rejections and their clients take CPU time from the model. The longer the model's requests
    # take, the fewer rejections there are.
    for model in ("linears", "convolutions"):
        with (
            closing(bench.server(flags=("--max_requests=32",))) as braid,
            closing(MinimalServer(bench.new_folder())) as grpc_alone,
        ):
            offer(bench, braid, grpc_alone, model)


def offer(bench: Bench, braid: BraidServer, grpc_alone: MinimalServer, model: str) -> None:
    def run(server: BraidServer | MinimalServer, seconds: float, **options: object) -> dict:
        return served(server, seconds, model=model, shape=(1, 1024), connections=4, **options)

    def best() -> dict:
        return run(braid, bench.seconds, in_flight=16)

    capacity = max(per_second(best(), "completed") for _ in range(3))

    def offered(times: int) -> dict:
        # Includes requests in flight at the end, and the time until their replies.
        return run(braid, 2 * bench.seconds, rate=times * capacity)

    def rejected_by_grpc_alone() -> dict:
        with busy_cores(bench.models / model / "1/model.pt", 1, CORES, 1024):
            return run(grpc_alone, bench.seconds, rate=9 * capacity)

    results = bench.alternate(best, lambda: offered(2), lambda: offered(10), rejected_by_grpc_alone)
    took = 2e3 / capacity  # with two workers
    heading(f"{took:.0f} ms per request ({model}), at most 32 in flight", bench.rounds)
    bests = [per_second(best_run, "completed") for best_run, *_ in results]
    row("best, requests/s, 16 in flight", bests, ".0f")
    for times, index, target in ((2, 1, None), (10, 2, 0.9)):
        done = [result[index] for result in results]
        ratios = [per_second(each, "completed") / best for each, best in zip(done, bests)]
        row(f"{times} × the capacity offered: completed, ratio to the best", ratios, target=target)
        cores = [client_cores(each) for each in done]
        row(f"{times} ×: cores used by the client", cores)
        row(f"{times} ×: limit from the remaining cores", [1 - c / CORES for c in cores])
        row(f"{times} ×: rejected/s", [per_second(each, "refused") for each in done], ".0f")
        refused = [each["refused"] for each in done]
        row(f"{times} ×: rejection p50, ms", [each["p50_ms"] for each in refused])
        row(f"{times} ×: rejection p99, ms", [each["p99_ms"] for each in refused])
    costs = [rejection_ms(ten_times, best_run) for best_run, _, ten_times, _ in results]
    row("10 ×: CPU time per rejection in the server, ms", costs, ".3f")
    costs = [cpu_seconds_per_request(alone, "refused") for *_, alone in results]
    row("10 ×: CPU time per rejection in gRPC alone, ms", [1e3 * each for each in costs], ".3f")
    taken = [
        client_cores(ten_times) + per_second(ten_times, "refused") * cost
        for (_, _, ten_times, _), cost in zip(results, costs)
    ]
    left = [1 - cores / CORES for cores in taken]
    row("10 ×: limit from the cores that the client and gRPC's rejections leave", left)


def served(server: BraidServer | MinimalServer, seconds: float, **options: object) -> dict:
    """Runs load() and adds the server's CPU time during it."""
    before = server.cpu_seconds()
    done = load(server.address, seconds, **options)
    return {**done, "server_cpu_seconds": server.cpu_seconds() - before}


def client_cores(done: dict) -> float:
    return done["cpu_seconds"] / done["seconds"]


def per_second(done: dict, answer: str) -> float:
    return done[answer]["count"] / done["seconds"]


def cpu_seconds_per_request(done: dict, answer: str) -> float:
    """Returns the server's CPU time per request, if all requests had this outcome."""
    return done["server_cpu_seconds"] / done[answer]["count"]


def rejection_ms(done: dict, best: dict) -> float:
    """Returns the server's CPU time per rejection in milliseconds. Assumes that a completed request
    takes as much CPU time as in `best`, which had no rejections."""
    completed = cpu_seconds_per_request(best, "completed")
    rest = done["server_cpu_seconds"] - done["completed"]["count"] * completed
    return 1e3 * rest / done["refused"]["count"]


def memory(bench: Bench) -> None:
    first, last = bench.requests
    heading(f"Resident memory, {first:,} and {last:,} requests of 1 row, 32 in flight", 1)
    with closing(bench.server()) as braid:
        options = {"in_flight": 32, "connections": 8}
        load(braid.address, requests=first, **options)
        early = braid.resident_bytes()
        load(braid.address, requests=last - first, **options)
        late = braid.resident_bytes()
    row(f"after {first:,}, MiB", [early / MIB], ".1f")
    row(f"after {last:,}, MiB", [late / MIB], ".1f")
    row("ratio", [late / early], ".3f", 1.05, "≤")


PARTS = {part.__name__: part for part in (peers, cpu, split, transport, overload, memory)}


def make_bench(folder: Path, short: bool) -> Bench:
    models = folder / "models"
    return Bench(
        models,
        inference_models.export(models),
        folder,
        int(os.environ.get("ROUNDS", "2" if short else "5")),
        float(os.environ.get("SECONDS_EACH", "0.6" if short else "3")),
        (1000, 10_000) if short else (10_000, 1_000_000),
    )


def main() -> None:
    print(f"\nTook {parts.run(PARTS, make_bench):.0f} s.")


if __name__ == "__main__":
    main()
