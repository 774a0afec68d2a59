"""A server that polls its repository serves its current content."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.support.model_control import CONFIG, Running, ask, index, load_on, write
from e2e.support.polling import wait_until

POLL_SECONDS = 0.2


def test_polling_serves_changes_without_failed_requests(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "a", 1, 1)
    flags = ("--model_control_mode=poll", f"--repository_poll_seconds={POLL_SECONDS}")
    with Running(tmp_path, *flags) as running:
        client = running.client
        with load_on(running.server, "a") as answers:
            for version in (2, 3):
                write(repository, "a", version, version)
                wait_until(lambda version=version: ask(client, "a") == version)
            write(repository, "a", 3, 30)
            wait_until(lambda: ask(client, "a") == 30)
            (repository / "new.pbtxt").write_text(CONFIG.format(rows=5))
            os.replace(repository / "new.pbtxt", repository / "a/config.pbtxt")
            wait_until(lambda: client.get_model_config("a").config.max_batch_size == 5)
            (repository / "a/3").rename(tmp_path / "taken")
            wait_until(lambda: ask(client, "a") == 2)
        assert answers == {1, 2, 3, 30}

        write(repository, "b", 1, 7)
        wait_until(lambda: client.is_model_ready("b"))
        assert ask(client, "b") == 7
        wait_until(lambda: running.healthy("b") is True)
        (repository / "b").rename(tmp_path / "gone")
        wait_until(lambda: not client.is_model_ready("b"))
        wait_until(lambda: running.healthy("b") is False)
        assert [name for name, _, _ in index(client)] == ["a"]
