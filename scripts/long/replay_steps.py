#!/usr/bin/env python3
"""Trains a small model for many steps, with dropout and batch norm, and replays all of them from the journal.

Every result and every checkpoint must be equal, bit for bit. BRAID_SERVER_BINARY names the server, if it is not
build/release/bin/braid-server. Exits with 1 on any difference. A million steps take about 3 GB of disk.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from e2e.support import durable
from e2e.support.durable import batch

DIFFERENT_BATCHES = 1000


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000, metavar="N", help="default: 1000000")
    return parser.parse_args()


def main() -> None:
    steps = parse_arguments().steps
    with tempfile.TemporaryDirectory(prefix="braid-replay-") as name:
        with durable.serving(Path(name), format="pair") as server, durable.connect(server) as client:
            trainer = client.create_trainer(
                "noisy",
                loss="cross_entropy",
                optimizer="AdamW",
                journal_history_bytes=1 << 40,
                checkpoint_every=max(1, steps // 10),
            )
            batches = [batch(number) for number in range(min(steps, DIFFERENT_BATCHES))]
            start = time.monotonic()
            with trainer.stream(depth=16, timeout=600) as stream:
                for number in range(steps):
                    future = stream.step(*batches[number % len(batches)])
                    if (number + 1) % (steps // 10 or 1) == 0:
                        made = future.result().step
                        print(f"{made} steps in {time.monotonic() - start:.0f} s", flush=True)
            start = time.monotonic()
            report = trainer.replay(timeout=math.inf)
            print(
                f"{report.operations} operations and {report.checkpoints} checkpoints compared in "
                f"{time.monotonic() - start:.0f} s"
            )
    print("equal, bit for bit" if report.difference is None else f"differs: {report.difference}")
    sys.exit(report.difference is not None or report.operations != steps)


if __name__ == "__main__":
    main()
