"""Runs the examples of the README."""

import inspect
import pathlib
import re

import braid
import grpc
import pytest

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


SECURE = "braid.example.org"
EXPORT = "braid.export("


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_examples_run(server):
    assert len(examples()) == 6
    names = {}
    for example in examples():
        if SECURE in example or EXPORT in example:
            continue
        if "except braid.InvalidArgument" in example:
            server.fail("ModelInfer", grpc.StatusCode.INVALID_ARGUMENT)
        exec(example.replace("127.0.0.1:8001", server.address), names)
    names["client"].close()
    assert names["version"] == 2
    assert [name for name, _ in server.calls].count("Step") == 1 + 10
    assert server.streams == 1


def test_secure_examples_pass_valid_arguments_to_connect(monkeypatch):
    """Does not connect, because the server in the example does not exist."""
    connect, made = inspect.signature(braid.connect), []
    monkeypatch.setattr(braid, "connect", lambda *a, **k: made.append(connect.bind(*a, **k)))
    monkeypatch.setenv("BRAID_TOKEN", "a-token")
    (example,) = (each for each in examples() if SECURE in each)
    exec(example, {"braid": braid})
    assert [call.arguments.get("token") for call in made] == ["a-token", None]
    assert made[1].arguments["key"] == "client-key.pem"


def test_export_example_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (example,) = (each for each in examples() if EXPORT in each)
    exec(example, {"braid": braid})
    assert capsys.readouterr().out == "pair models/fashion/1 \n"
    assert (tmp_path / "models/fashion/config.pbtxt").is_file()
