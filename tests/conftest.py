"""Fixtures of the tests that run real processes: the model repository and the servers on it."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Packages of the checkout that are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client/python"))
# gRPC logs a line about fork for every process that a test starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# Compiled packages need no fast wrapper here, and compiling takes most of the time of their tests.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
os.environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")

import pytest
import torch

# Shows values of failed assertions in helpers.
pytest.register_assert_rewrite("e2e.support")

from e2e.support import models
from e2e.support.server import Server
from e2e.support.sharing import make_once

# Several servers, the clients and the oracle share the cores. Intra-op threads that wait for each
# other by spinning are ten times slower than one thread.
torch.set_num_threads(1)
ONE_THREAD = "--cpu_threads=1"


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """repositories(format): all models of `models.py` that the format can represent. Exported once
    for all test processes. Servers get copies."""

    @functools.cache
    def get(format: str) -> Path:
        return make_once(
            tmp_path_factory,
            f"repository-{format}",
            models.names_in(format),
            lambda directory, name: models.export_model(directory, name, format),
        )

    return get


@pytest.fixture(scope="session")
def repository(repositories: Callable[[str], Path]) -> Path:
    """All models of `models.py` as TorchScript."""
    return repositories("torchscript")


@pytest.fixture(scope="session")
def start_server(
    repositories: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Server]]:
    """start_server(devices, names=None, flags=(), environment=None, format="torchscript"): a new
    server on a copy of the models.

    names: the models to copy; default: all. environment: variables in addition to this process's.
    At the end of the session, every running server is stopped. Every server must have exited with
    code 0.
    """
    servers: list[Server] = []

    def start(
        devices: str,
        names: tuple[str, ...] | None = None,
        flags: tuple = (),
        environment: dict[str, str] | None = None,
        format: str = "torchscript",
    ) -> Server:
        repository = repositories(format)
        directory = tmp_path_factory.mktemp("server")
        for name in names or [path.name for path in repository.iterdir()]:
            shutil.copytree(repository / name, directory / "models" / name)
        server = Server(
            directory / "models",
            devices,
            directory / "run",
            (ONE_THREAD, *flags),
            environment=environment,
        )
        servers.append(server)
        return server.start()

    try:
        yield start
        for server in servers:
            server.stop()
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def serve(start_server: Callable[..., Server]) -> Callable[..., Server]:
    """serve(devices, format="torchscript"): one shared server per session for these devices and
    that format, for tests that leave no trace."""

    @functools.cache
    def get(devices: str, format: str = "torchscript") -> Server:
        return start_server(devices, format=format)

    return get
