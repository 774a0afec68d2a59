#!/usr/bin/env python3
"""Restarts servers repeatedly under load and counts failed requests.

Two servers receive 1,000 requests per second in turn from a gRPC client that balances over both.
One is shut down (SIGTERM) and restarted, then the other. Exits with 1 if a request fails, or if
fewer than 1,000 requests per second (--rate) succeed over the whole run and all client threads:
then the machine was too slow or too busy for a result. Slightly more are offered, so that a short
pause at the end does not decide.
BRAID_SERVER_BINARY names the server, if it is not build/release/bin/braid-server.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import torch
from e2e.support import models, rolling

PROGRESS_TIMES = 5
# Requests that are offered for each that has to be answered.
OFFERED = 1.05


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50, metavar="N", help="default: 50")
    parser.add_argument(
        "--client",
        choices=("health", "retry"),
        default="health",
        help="what the client does: watch health (the default), or retry",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=1000,
        metavar="N",
        help="requests/s that have to be answered; default: 1000",
    )
    parser.add_argument(
        "--drain_delay", default="1", metavar="SECONDS", help="of the servers; default: 1"
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's, of TorchScript
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        models.export(
            directory / "models/mlp",
            models.make("mlp"),
            config=models.configs.MLP,
        )
        flags = {"cpu_threads": "1", "drain_delay": arguments.drain_delay}
        with rolling.fleet(directory / "models", directory / "run", **flags) as fleet:
            began = time.monotonic()
            load = rolling.Load(fleet.addresses, arguments.client, OFFERED * arguments.rate)
            with load:
                for count in range(1, arguments.times + 1):
                    fleet.replace(fleet.servers[count % 2])
                    if count % PROGRESS_TIMES == 0 or count == arguments.times:
                        print(
                            f"{time.monotonic() - began:6.0f} s  {count} of {arguments.times}: "
                            f"{load.outcome.replies} replies, "
                            f"{len(load.outcome.failures)} failures",
                            flush=True,
                        )
    outcome = load.outcome
    for at, failure in outcome.failures[:20]:
        print(f"  {at - began:.3f} s: {failure}")
    print(f"{outcome.rate:.1f} requests/s answered; {arguments.rate:.0f} are required")
    return 1 if outcome.failures or outcome.rate < arguments.rate else 0


if __name__ == "__main__":
    sys.exit(main())
