#!/usr/bin/env python3
"""Kills a server repeatedly while clients that never resend are training.

Three clients train one trainer each, with dropout and batch norm, and reconnect after each kill. After
each restart, every answered operation must have been applied exactly once. In the end, the weights must
equal those of trainers without a kill, bit for bit. BRAID_SERVER_BINARY names the server, if it is not
build/release/bin/braid-server. Exits with 1 on any problem.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from e2e.support import durable
from e2e.support.journal_kills import kill_while_training
from e2e.support.kill_progress import Progress


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, metavar="N", help="default: 1000")
    parser.add_argument("--seed", type=int, help="random seed of the kill times; default: random")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 31)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="braid-journal-") as name:
        with durable.serving(Path(name), format="pair") as server:
            problems = kill_while_training(
                server, arguments.kills, random.Random(seed), Progress(arguments.kills)
            )
    for problem in problems:
        print(problem)
    print("lost or repeated nothing, same bits" if not problems else f"{len(problems)} problems")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
