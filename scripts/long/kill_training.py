#!/usr/bin/env python3
"""Kills a server repeatedly during training and compares the results bit for bit.

Two trainers, with dropout, batch norm, schedules and clipping on two CPU replicas, are streamed
to. The server is killed (SIGKILL) during steps, checkpoints, publications and starts, and started
again; the clients go on by themselves. Then the same operations run without a kill. Every reply,
weight and published version must be the same. BRAID_SERVER_BINARY names the server, if it is not
build/release/bin/braid-server. Exits with 1 on any difference.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import torch
from e2e.support import kill_runs
from e2e.support.kill_progress import Progress


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--seed", type=int, help="of the moments; default: another each time")
    return parser.parse_args()


def compare(killed: dict[str, kill_runs.Outcome], wanted: dict[str, kill_runs.Outcome]) -> bool:
    """Prints a line for each trainer, and what differs."""
    same = True
    for name, outcome in killed.items():
        found = kill_runs.differences(outcome, wanted[name])
        updates, operations = outcome.stands
        lost = sum(reply is None for _, reply in outcome.operations)
        print(
            f"{name}: {operations} operations ({updates} updates, "
            f"{len(outcome.versions)} versions), {lost} replies lost: "
            f"{f'{len(found)} DIFFERENCES' if found else 'the same bits'}"
        )
        for difference in found[:20]:
            print(f"  {difference}")
        same = same and not found
    return same


def main() -> int:
    arguments = parse_arguments()
    seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's, of TorchScript
    moments = kill_runs.moments(arguments.kills, seed)
    kinds = ", ".join(f"{moments.count(kind)} at a {kind}" for kind in sorted(set(moments)))
    print(f"seed {seed}: {kinds}", flush=True)
    with tempfile.TemporaryDirectory(prefix="braid-kills-") as directory:
        killed, wanted = kill_runs.train(Path(directory), moments, seed, Progress(len(moments)))
    return 0 if compare(killed, wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
