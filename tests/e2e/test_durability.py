"""kill -9 during training does not change the result by a bit."""

from __future__ import annotations

from pathlib import Path

from e2e.support import kill_runs

KILLS = 10


def test_training_run_survives_kill_9(tmp_path: Path, format: str) -> None:
    """Two trainers with dropout, batch norm, schedules and clipping stream to two replicas. The
    server is killed during steps, checkpoints, publications and starts. No operation is lost or applied
    twice, and every reply, weight and version equals that of an undisturbed run."""
    killed, undisturbed = kill_runs.train(
        tmp_path, kill_runs.moments(KILLS, seed=1), seed=1, format=format
    )
    for recipe, outcome in killed.items():
        assert kill_runs.differences(outcome, undisturbed[recipe]) == []
        replied = [reply for _, reply in outcome.operations if reply is not None]
        assert len(replied) > len(outcome.operations) / 2  # Otherwise too little was compared.
        assert outcome.stands[1] == len(outcome.operations) > KILLS
