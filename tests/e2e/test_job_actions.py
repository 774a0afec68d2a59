"""Jobs that are paused, resumed, cancelled, preempted and killed at random moments.

`scripts/long/disturb_jobs.py` does the same for longer.
"""

from __future__ import annotations

from pathlib import Path

from e2e.support import job_actions

ROWS, STEPS, ACTIONS = 20_000, 50, 15


def test_random_actions_lose_no_row_and_no_step(tmp_path: Path) -> None:
    with job_actions.running(tmp_path, ROWS, STEPS, seed=1) as actions:
        actions.act(ACTIONS)
        assert actions.finish() == []
        assert sum(actions.counts[reason] for reason in job_actions.REASONS) > 0
