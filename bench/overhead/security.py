"""Measures what TLS, tokens and the access log cost inference, with alternating requests to
servers.

.venv/bin/python bench/overhead/security.py prints a table for bench/RESULTS.md (medians and
quartiles). Takes about four minutes.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]

from e2e.support import auth, configs, models  # noqa: E402
from e2e.support.auth import Authority  # noqa: E402
from e2e.support.server import Server  # noqa: E402

LOAD = ROOT / "build/release/bin/braid-bench-load"
ROUNDS, SECONDS = 50, 0.25
IN_FLIGHT = (1, 8)
PLAINTEXT = ("plaintext", "plaintext, second server")
# Minimum throughput, as a multiple of the plaintext servers'.
TARGETS = {"tokens, access log": 0.97, "TLS": 0.75}
TOKEN = "made-for-the-benchmark"


@dataclass(frozen=True)
class Measured:
    cpu: float  # CPU time of the server per request, in microseconds
    rate: float  # requests per second


def measure(server: Server, in_flight: int, *flags: str) -> Measured:
    """Sends requests of one row with `in_flight` in flight."""
    command = [str(LOAD), f"--server={server.address}", "--model=mlp", "--shape=1,784"]
    command += [f"--in_flight={in_flight}", f"--seconds={SECONDS}", *flags]
    before = server.cpu_seconds()
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    completed = report["completed"]["count"]
    cpu = 1e6 * (server.cpu_seconds() - before) / completed
    return Measured(cpu, completed / report["seconds"])


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        models.export(directory / "models/mlp", models.make("mlp"), config=configs.MLP)
        authority = Authority(directory / "ca")
        pair = authority.issue_server()
        lines = [auth.token_line("infer", f"other-{i}", f"other-{i}") for i in range(100)]
        lines.append(auth.token_line("infer:mlp", TOKEN, "bench"))
        (directory / "tokens").write_text("".join(lines))
        tls = (f"--tls_cert={pair.certificate}", f"--tls_key={pair.key}")
        tokens = (f"--auth_tokens={directory / 'tokens'}",)
        logged = ("--log_level=access=info", "--log_format=json")
        show, over = f"--token={TOKEN}", f"--ca={authority.certificate}"
        kinds = {
            # Two servers with equal flags show the noise between servers.
            **{kind: ((), ()) for kind in PLAINTEXT},
            "tokens": (tokens, (show,)),
            "tokens, access log": ((*tokens, *logged), (show,)),
            "TLS": (tls, (over,)),
            "TLS, tokens, access log": ((*tls, *tokens, *logged), (over, show)),
        }
        servers = {
            kind: stack.enter_context(
                Server(
                    directory / "models",
                    "cpu*2",
                    directory / "run" / kind,
                    ("--cpu_threads=1", *flags),
                    data=False,
                )
            )
            for kind, (flags, _) in kinds.items()
        }
        for in_flight in IN_FLIGHT:
            for kind, (_, flags) in kinds.items():
                measure(servers[kind], in_flight, *flags)  # warms up
            measured: dict[str, list[Measured]] = {kind: [] for kind in kinds}
            for _ in range(ROUNDS):
                # Shuffled, because a server's place in the order affects its result.
                for kind in random.sample(list(kinds), len(kinds)):
                    measured[kind].append(measure(servers[kind], in_flight, *kinds[kind][1]))
            print_table(in_flight, measured)


def print_table(in_flight: int, measured: dict[str, list[Measured]]) -> None:
    print(
        f"\n| {in_flight} in flight | requests/s | ratio | target "
        "| server's CPU per request | ratio |"
    )
    print("|---|---|---|---|---|---|")
    both = list(zip(*(measured[kind] for kind in PLAINTEXT)))
    for kind, rounds in measured.items():
        rate = statistics.median(one.rate for one in rounds)
        cpu = statistics.median(one.cpu for one in rounds)
        pairs = list(zip(rounds, both))
        rates = [one.rate / statistics.mean(p.rate for p in base) for one, base in pairs]
        cpus = [one.cpu / statistics.mean(p.cpu for p in base) for one, base in pairs]
        target = f"≥ {TARGETS[kind]}" if kind in TARGETS else ""
        print(
            f"| {kind} | {rate:,.0f} | {quartiles(rates)} | {target} | {cpu:,.1f} µs "
            f"| {quartiles(cpus)} |"
        )


def quartiles(ratios: list[float]) -> str:
    """Formats the median and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
