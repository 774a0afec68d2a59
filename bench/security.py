"""What TLS, tokens and the access log cost inference: servers side by side, asked in turn.

.venv/bin/python bench/security.py prints a table for bench/RESULTS.md, medians and quartiles, in some
three minutes.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]

from e2e import access, configs, models  # noqa: E402
from e2e.certificates import Authority  # noqa: E402
from e2e.server import Server  # noqa: E402

LOAD = ROOT / "build/release/bin/braid-bench-load"
ROUNDS, SECONDS = 100, 0.25
TOKEN = "made-for-the-benchmark"


def cpu_seconds(server: Server) -> float:
    """Of the server's process since it began."""
    return time.clock_gettime(~server.process.pid << 3 | 2)  # as clock_getcpuclockid() makes it


def cost(server: Server, *flags: str) -> float:
    """Microseconds of the server's CPU time for a request of one row, one at a time: those that wait
    together are merged, the more of them the faster their client is. The time that passes would
    also be that of the client, and of whoever else uses the machine."""
    command = [str(LOAD), f"--server={server.address}", "--model=mlp", "--shape=1,784"]
    command += ["--in_flight=1", f"--seconds={SECONDS}", *flags]
    before = cpu_seconds(server)
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return 1e6 * (cpu_seconds(server) - before) / report["completed"]["count"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        models.export(directory / "models/mlp", models.make("mlp"), config=configs.MLP)
        authority = Authority(directory / "ca")
        pair = authority.issue_server()
        lines = [access.token_line("infer", f"other-{i}", f"other-{i}") for i in range(100)]
        lines.append(access.token_line("infer:mlp", TOKEN, "bench"))
        (directory / "tokens").write_text("".join(lines))
        tls = (f"--tls_cert={pair.certificate}", f"--tls_key={pair.key}")
        tokens = (f"--auth_tokens={directory / 'tokens'}",)
        logged = ("--log_level=access=info", "--log_format=json")
        show, over = f"--token={TOKEN}", f"--ca={authority.certificate}"
        kinds = {
            "plaintext": ((), ()),
            "tokens": (tokens, (show,)),
            "tokens, access log": ((*tokens, *logged), (show,)),
            "TLS": (tls, (over,)),
            "TLS, tokens": ((*tls, *tokens), (over, show)),
        }
        servers = {
            kind: stack.enter_context(
                Server(directory / "models", "cpu*1", directory / "run" / kind, flags, data=False)
            )
            for kind, (flags, _) in kinds.items()
        }
        for kind, (_, flags) in kinds.items():
            cost(servers[kind], *flags)  # warms up
        costs: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            # Whoever comes after an idle moment, or after another, may find the machine otherwise.
            for kind in random.sample(list(kinds), len(kinds)):
                costs[kind].append(cost(servers[kind], *kinds[kind][1]))
        print("| | CPU of a request | ratio | of the least tenth |\n|---|---|---|---|")
        for kind, measured in costs.items():
            ratios = [one / base for one, base in zip(measured, costs["plaintext"])]
            middle = statistics.quantiles(ratios, n=4)
            undisturbed = least(measured) / least(costs["plaintext"])
            print(
                f"| {kind} | {statistics.median(measured):,.1f} µs "
                f"| {middle[1]:.3f} ({middle[0]:.3f} to {middle[2]:.3f}) | {undisturbed:.3f} |"
            )


def least(measured: list[float]) -> float:
    """The first decile: others on the machine only ever add."""
    return statistics.quantiles(measured, n=10)[0]


if __name__ == "__main__":
    main()
