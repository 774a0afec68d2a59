#!/usr/bin/env python3
"""Publishes a small model 10,000 times while clients send requests.

No call may fail, and every reply must come from one version. Prints how long publications took.
BRAID_SERVER_BINARY names the server, if it is not build/release/bin/braid-server. Exits with 1 on
any problem.
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

import numpy as np
import torch
from e2e.support import publishing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--publishes", type=int, default=10_000, metavar="N", help="default: 10000")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="braid-publish-") as directory:
        outcome = publishing.run(Path(directory), arguments.publishes)
    half, high = np.percentile(outcome.publish_seconds, [50, 99]) * 1e3
    print(
        f"{arguments.publishes} publications, {outcome.replies} replies; publish takes "
        f"{half:.1f} ms (p50), {high:.1f} ms (p99), {max(outcome.publish_seconds) * 1e3:.0f} ms at most"
    )
    for problem in outcome.problems[:20]:
        print(problem)
    print(f"{len(outcome.problems)} problems")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
