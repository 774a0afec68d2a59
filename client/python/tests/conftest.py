"""Adds the package to the import path, and gives each test its own fake server."""

import os
import pathlib
import sys

import pytest

# Compiled packages need no fast wrapper here, and compiling takes most of the time of their tests.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
os.environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")
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
