#!/usr/bin/env python3
"""Disturbs jobs at random moments, and compares the results with undisturbed jobs.

Training and inference jobs of four priorities run, two at a time. Random actions submit, pause,
resume and cancel jobs, and kill the server (SIGKILL). Jobs of higher priority preempt others. After
every few actions, the jobs must come to rest as a small model says. At the end, every change of a
job's state must be an allowed one, weights and metrics must be equal bit for bit, and files of
metrics and outputs must have each step and each row once. BRAID_SERVER_BINARY names the server, if
it is not build/release/bin/braid-server. Exits with 1 on any difference.
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
from e2e.support import job_actions

PROGRESS_ACTIONS = 20


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actions", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--steps", type=int, default=500, help="of a training job; default: 500")
    parser.add_argument("--rows", type=int, default=100_000, help="of the table; default: 100000")
    parser.add_argument("--seed", type=int, help="of the actions; default: another each time")
    return parser.parse_args()


def report(began: float, actions: job_actions.JobActions) -> None:
    counts = ", ".join(f"{count} {what}" for what, count in actions.counts.items())
    print(f"{time.monotonic() - began:6.0f} s  {counts}", flush=True)


def main() -> int:
    arguments = parse_arguments()
    seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch's, of TorchScript
    print(f"seed {seed}", flush=True)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="braid-job-actions-") as directory,
        job_actions.running(Path(directory), arguments.rows, arguments.steps, seed) as actions,
    ):
        for first in range(0, arguments.actions, PROGRESS_ACTIONS):
            actions.act(min(PROGRESS_ACTIONS, arguments.actions - first))
            report(began, actions)
        found = actions.finish()
        report(began, actions)
    print("\n".join(found) if found else "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
