"""What TLS, tokens and the access log cost inference: servers side by side, asked in turn.

.venv/bin/python bench/security.py prints a table for bench/RESULTS.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]

from e2e import access, configs, models  # noqa: E402
from e2e.certificates import Authority  # noqa: E402
from e2e.server import Server  # noqa: E402

LOAD = ROOT / "build/release/bin/braid-bench-load"
ROUNDS, SECONDS, IN_FLIGHT = 9, 1, 8
TOKEN = "made-for-the-benchmark"


def cpu_seconds(server: Server) -> float:
    """Of the server's process since it began."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(server: Server, *flags: str) -> float:
    """Microseconds of the server's CPU time for a request of one row. The time that passes would
    also be that of the client, and of whoever else uses the machine."""
    command = [str(LOAD), f"--server={server.address}", "--model=mlp", "--shape=1,784"]
    command += [f"--in_flight={IN_FLIGHT}", f"--seconds={SECONDS}", *flags]
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
        costs: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS + 1):
            for kind, (_, flags) in kinds.items():
                costs[kind].append(cost(servers[kind], *flags))
        print("| | CPU of a request | ratio to plaintext |\n|---|---|---|")
        for kind, measured in costs.items():
            # The first round warms up.
            ratios = [one / base for one, base in zip(measured[1:], costs["plaintext"][1:])]
            print(
                f"| {kind} | {statistics.median(measured[1:]):,.1f} µs "
                f"| {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) |"
            )


if __name__ == "__main__":
    main()
