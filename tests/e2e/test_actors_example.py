"""The example in which actors ask for actions while a learner trains and publishes, for a short time."""

from __future__ import annotations

import re
from pathlib import Path

import braid
from e2e.support import examples
from e2e.support.server import ROOT, Server

EXAMPLE = ROOT / "examples/actors"
LATENCIES = r" +(\d+) actions  p50 +[\d.]+ ms  p99 +[\d.]+ ms\n"


def test_actors_get_actions_while_the_learner_trains_and_publishes(tmp_path: Path) -> None:
    examples.run(EXAMPLE / "export.py", tmp_path / "models")
    with Server(tmp_path / "models", "cpu*2", tmp_path / "server") as server:
        output = examples.run(EXAMPLE / "actors.py", "--server", server.address, "--actors", 3, "--seconds", 3)
        with braid.connect(server.address) as client:
            served = client.model_metadata("policy").versions[-1]
    printed = re.fullmatch(
        f"alone{LATENCIES}learner{LATENCIES}p99 with the learner / alone: [\\d.]+\n"
        r"(\d+) steps; episodes of \d+ frames at first, and of \d+ with version (\d+)\n",
        output,
    )
    assert printed, output
    alone, learning, steps, version = map(int, printed.groups())
    assert 0 < alone < learning
    assert steps > 0
    assert 1 <= version <= served
    assert served > 1
