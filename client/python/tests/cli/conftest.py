"""Fixtures of the tests of the command."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from braid.cli import main


@dataclass(frozen=True)
class Run:
    """A run of the command. code: its exit code; out, err: what it printed."""

    code: int
    out: str
    err: str

    @property
    def events(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Hides the user's configuration file and variables from a test."""
    for name in ("BRAID_SERVER", "BRAID_CA", "BRAID_TOKEN", "BRAID_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("BRAID_TRACEBACK", "1")


@pytest.fixture
def run(capsys):
    """run(*arguments): runs the command in this process."""

    def call(*arguments):
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Run(code, printed.out, printed.err)

    return call


@pytest.fixture
def call(run, server):
    """call(*arguments): runs the command with the fake server."""
    return lambda *arguments: run("--server", server.address, "--timeout", 20, *arguments)


@pytest.fixture
def save(tmp_path):
    """save(name, array): the path of a new .npy file."""

    def write(name, array):
        path = tmp_path / f"{name}.npy"
        np.save(path, array)
        return path

    return write


@pytest.fixture
def data(save):
    """Options that name the files of 5 rows."""
    x = save("x", np.arange(5, dtype=np.float32).reshape(5, 1))
    y = save("y", np.arange(5))
    return ["--input", f"x={x}", "--target", f"target={y}"]
