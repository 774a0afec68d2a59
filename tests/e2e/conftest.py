"""The server on which training is compared with PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator

import braid
import pytest
from e2e import training_models
from e2e.server import Server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever trains on `training_server`, or asks for a `format`, does so in every format of its
    models, but for tests with the mark `torchscript`, which says why another cannot hold theirs."""
    told = [
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    ]
    for name in ("training_server", "format"):
        if name in metafunc.fixturenames and name not in told:
            only = next(metafunc.definition.iter_markers("torchscript"), None)
            formats = ["torchscript"] if only else list(training_models.FORMATS)
            metafunc.parametrize(name, formats, indirect=True, scope="session")


@pytest.fixture(scope="session")
def format(request: pytest.FixtureRequest) -> str:
    """Of the models' files: "torchscript" or "pair"."""
    return request.param


@pytest.fixture(scope="session")
def training_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Four CPU devices, of which a trainer takes as many as `training.on` says, and the models of
    `training_models` in one format. Must end with exit code 0."""
    directory = tmp_path_factory.mktemp("training")
    training_models.export_all(directory / "models", request.param)
    with Server(
        directory / "models", "cpu*4", directory / "run", ("--cpu_threads=1",), data=False
    ) as server:
        yield server


@pytest.fixture(scope="session")
def trainers(training_server: Server) -> Iterator[braid.Client]:
    """A client of `training_server`."""
    with braid.connect(training_server.address) as client:
        yield client
