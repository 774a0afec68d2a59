"""Adds the package to the import path, and gives each test its own fake server."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import braid  # noqa: E402
from fake_server import FakeServer  # noqa: E402


@pytest.fixture
def server():
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def client(server):
    with braid.connect(server.address, timeout=20, wait_ready=10) as connected:
        yield connected
