"""Compares the server with exported modules, in merged and split batches of mixed requests.
scripts/long/serve_any_module.py tests all modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import pytest
from e2e.support import user_modules
from e2e.support.server import Server


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("any_modules")
    for name in user_modules.FEW:
        user_modules.export(directory, name)
    return directory


@pytest.fixture(scope="module")
def client(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    run = tmp_path_factory.mktemp("any_modules_run")
    with Server(repository, "cpu*3", run, ("--cpu_threads=1",), data=False) as server:
        with braid.connect(server.address) as connected:
            yield connected


@pytest.mark.parametrize("name", user_modules.FEW)
def test_outputs_equal_the_module(client: braid.Client, name: str) -> None:
    assert user_modules.differences(client, name) == []


@pytest.mark.parametrize("name", user_modules.FEW)
def test_model_is_batched_unless_rows_depend_on_each_other(repository: Path, name: str) -> None:
    config = (repository / name / "config.pbtxt").read_text()
    batched = "max_batch_size: 0\n" not in config
    assert batched is not user_modules.CASES[name].across
