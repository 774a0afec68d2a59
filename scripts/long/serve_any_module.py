#!/usr/bin/env python3
"""Exports small modules of every kind, serves them, and compares each answer with the module's.

More than 60 modules, of which half look across the rows of a batch. `braid.export` chooses the
format. Requests of 1 to 300 rows are sent at once to 3 CPU replicas, which merge and split them. A
module that looks across rows must not be batched, the others must. BRAID_SERVER_BINARY names the
server, if it is not build/release/bin/braid-server. Exits with 1 on any difference. Takes some
minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import braid
import torch
from e2e.support import user_modules
from e2e.support.server import Server
from e2e.support.user_modules import CASES


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modules", nargs="+", choices=CASES, default=[*CASES], metavar="NAME")
    return parser.parse_args()


def report(name: str, found: list[str]) -> bool:
    print(f"{'FAIL' if found else 'ok  '}  {name}", *found, sep="\n      ", flush=True)
    return not found


def export(repository: Path, name: str) -> list[str]:
    """Describes the faults of the package's configuration."""
    user_modules.export(repository, name)
    config = (repository / name / "config.pbtxt").read_text()
    batched = "max_batch_size: 0\n" not in config
    if batched is CASES[name].across:
        return [f"is {'batched' if batched else 'not batched'}"]
    return []


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="braid-any-module-") as temporary:
        repository = Path(temporary) / "models"
        wrong = {name: export(repository, name) for name in arguments.modules}
        run = Path(temporary) / "run"
        with Server(repository, "cpu*3", run, ("--cpu_threads=1",), data=False) as server:
            with braid.connect(server.address) as client:
                good = [
                    report(name, found + user_modules.differences(client, name))
                    for name, found in wrong.items()
                ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
