"""The server on which training is compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator

import braid
import pytest
from e2e import training_models
from e2e.server import Server


@pytest.fixture(scope="session")
def training_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Four CPU devices, of which a trainer takes as many as `training.on` says, and the models of
    `training_models`. Must end with exit code 0."""
    directory = tmp_path_factory.mktemp("training")
    training_models.export_all(directory / "models")
    with Server(
        directory / "models", "cpu*4", directory / "run", ("--cpu_threads=1",), data=False
    ) as server:
        yield server


@pytest.fixture(scope="session")
def trainers(training_server: Server) -> Iterator[braid.Client]:
    """A client of `training_server`."""
    with braid.connect(training_server.address) as client:
        yield client
