#!/usr/bin/env python3
"""Kills a server repeatedly while three jobs run, and compares the results with undisturbed jobs.

Two jobs train, with dropout, batch norm, schedules, clipping, sample weights and evaluations; one
scores. The server is killed (SIGKILL) at random moments and started again, and the jobs continue by
themselves. Weights, losses and metrics must be equal bit for bit, and the output must have each row
once. When all jobs have ended, the same jobs are submitted again, until there were enough kills.
BRAID_SERVER_BINARY names the server, if it is not build/release/bin/braid-server. Exits with 1 on
any difference.
"""

from __future__ import annotations

import argparse
import os
import random
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
from e2e.support import durable, job_kills, jobs


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, metavar="N", help="default: 50")
    parser.add_argument("--steps", type=int, default=5000, help="of a training job; default: 5000")
    parser.add_argument("--rows", type=int, default=500_000, help="of the table; default: 500000")
    parser.add_argument("--seed", type=int, help="of the moments; default: another each time")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    moments = random.Random(seed)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's, of TorchScript
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    same = True
    with tempfile.TemporaryDirectory(prefix="braid-job-kills-") as name:
        directory = Path(name)
        job_kills.prepare(directory)
        with jobs.serving(directory, max_running_jobs="3") as server:
            job_kills.write_table(server, arguments.rows)
            with durable.connect(server) as client:
                undisturbed = job_kills.submit(client, "undisturbed", arguments.steps)
                wanted = job_kills.outcomes(server, undisturbed)
                kills = rounds = 0
                while kills < arguments.kills:
                    submitted = job_kills.submit(client, f"round-{rounds}", arguments.steps)
                    before = kills
                    while kills < arguments.kills and job_kills.kill(
                        server, client, submitted, moments
                    ):
                        kills += 1
                    outcomes = job_kills.outcomes(server, submitted)
                    found = job_kills.all_differences(outcomes, wanted)
                    attempts = sum(outcome.attempts for outcome in outcomes.values())
                    print(
                        f"{time.monotonic() - began:6.0f} s  round {rounds}: {kills - before} "
                        f"kills, {attempts} attempts of 3 jobs: "
                        f"{'; '.join(found) if found else 'the same results'}",
                        flush=True,
                    )
                    same = same and not found
                    rounds += 1
    print(f"{kills} kills: {'no difference' if same else 'DIFFERENCES'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
