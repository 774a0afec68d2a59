"""A server that polls its repository serves its current content."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import torch
from e2e.support import programs
from e2e.support.model_control import (
    CALL_SECONDS,
    CONFIG,
    Running,
    Times,
    ask,
    index,
    load_on,
    reasons,
    write,
)
from e2e.support.polling import wait_until
from e2e.support.server import COMMAND

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


def test_version_that_does_not_fit_the_configuration_is_not_served(tmp_path: Path) -> None:
    """Clients may send any size for a dim of -1."""
    repository = tmp_path / "models"
    write(repository, "a", 1, 1, CONFIG.format(rows=8).replace("4", "-1"))
    x = [torch.zeros(2, 4)]
    made = tmp_path / "made/2"
    programs.save(made / "model.pt2", Times(2), x, programs.any_batch(x))
    flags = ("--model_control_mode=poll", f"--repository_poll_seconds={POLL_SECONDS}")
    with Running(tmp_path, *flags) as running:
        client = running.client
        assert reasons(client) == {("a", "1"): ""}
        made.rename(repository / "a/2")
        wait_until(lambda: len(reasons(client)) == 2)
        assert index(client) == [("a", "1", "READY"), ("a", "2", "UNAVAILABLE")]
        assert ask(client, "a") == 1
        reason = reasons(client)["a", "2"]
        assert "input 'x' is configured as FP32[rows, -1] (model.pt2 takes " in reason
        line = f"model 'a' version 2: failed to load; still serving version 1: {reason}"
        assert line in running.server.log

        (repository / "a/2").rename(tmp_path / "taken")
        wait_until(lambda: reasons(client) == {("a", "1"): ""})
        (repository / "new.pbtxt").write_text("max_batch_size: 8")
        os.replace(repository / "new.pbtxt", repository / "a/config.pbtxt")
        wait_until(lambda: reasons(client).get(("a", "1")))
        assert ask(client, "a") == 1
        command = [COMMAND, "--server", running.server.address, "--json", "models"]
        listed = subprocess.run(command, capture_output=True, check=True, timeout=CALL_SECONDS)
        (version,) = json.loads(listed.stdout)["models"]
        assert [version["version"], version["state"]] == ["1", "READY"]
        assert version["reason"] == (
            "the last load failed: config.pbtxt: input: no tensors (list all of them, or remove "
            "config.pbtxt)"
        )
