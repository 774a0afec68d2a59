"""Fixtures for servers whose training is compared with PyTorch's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import braid
import pytest
import torch
from e2e.support import durable, models, training_models
from e2e.support.durable import DurableServer
from e2e.support.server import Server
from e2e.support.sharing import make_once


FORMATS = {
    "training_server": training_models.FORMATS,
    "format": training_models.FORMATS,
    "served_format": models.FORMATS,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrizes tests that use a fixture of FORMATS over its formats. The mark `not_in` excludes
    formats that cannot represent the model."""
    told = [
        name.strip()
        for mark in metafunc.definition.iter_markers("parametrize")
        for name in (mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0])
    ]
    for name, formats in FORMATS.items():
        if name in metafunc.fixturenames and name not in told:
            excluded = _excluded(metafunc.definition)
            held = [format for format in formats if format not in excluded]
            metafunc.parametrize(name, held, indirect=True, scope="session")


def _excluded(test: pytest.Item) -> set[str]:
    excluded = set()
    for mark in test.iter_markers("not_in"):
        assert mark.kwargs.keys() == {"model", "reason"}, test.nodeid
        assert set(mark.args) <= set(models.FORMATS), test.nodeid
        excluded.update(mark.args)
    return excluded


@pytest.fixture(scope="module", autouse=True)
def seeded() -> None:
    """Random weights and examples are the same in each run, so that exported models are kept."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def format(request: pytest.FixtureRequest) -> str:
    """File format of trained models: "torchscript" or "pair"."""
    return request.param


@pytest.fixture(scope="session")
def served_format(request: pytest.FixtureRequest) -> str:
    """File format of served models: one of models.FORMATS."""
    return request.param


@pytest.fixture(scope="session")
def training_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of the models of `training_models` in one format, with four CPU devices.
    `training.on` selects how many a trainer uses. Must exit with code 0."""
    exported = make_once(
        tmp_path_factory,
        f"training-{request.param}",
        training_models.names_in(request.param),
        lambda directory, name: training_models.export_model(directory, name, request.param),
    )
    directory = tmp_path_factory.mktemp("training")
    shutil.copytree(exported, directory / "models")
    with Server(
        directory / "models", "cpu*4", directory / "run", ("--cpu_threads=1",), data=False
    ) as server:
        yield server


@pytest.fixture(scope="session")
def trainers(training_server: Server) -> Iterator[braid.Client]:
    """A client of `training_server`."""
    with braid.connect(training_server.address) as client:
        yield client


@pytest.fixture
def client(server: DurableServer) -> Iterator[braid.Client]:
    """A client of the test file's fixture `server`, a DurableServer."""
    with durable.connect(server) as client:
        yield client
