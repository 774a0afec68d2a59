"""The examples of the project's README and of docs/formats.md run as they stand."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.server import ROOT, Server


def examples(page: str) -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", (ROOT / page).read_text(), re.DOTALL | re.M)
    return [textwrap.dedent(text) for _, text in found]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one, for `models`."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme(here: Path) -> None:
    serve, use, outlive = examples("README.md")
    names: dict = {}
    exec(serve, names)
    with Server(here / "models", "cpu*2", here / "run", ("--cpu_threads=1",)) as server:
        x = np.random.default_rng(0).standard_normal((32, 784)).astype(np.float32)
        y = np.arange(32) % 10
        names |= {"array": x, "x": x, "y": y}
        exec(use.replace("127.0.0.1:8001", server.address), names)
        assert names["version"] == 2
        names["trainer"].delete()
        names["loader"] = [(x, y)] * 3
        exec(outlive, names)
        assert names["trainer"].info().step == 3
        names["client"].close()


def test_formats(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auto, weights, migrated, loaded = examples("docs/formats.md")
    names: dict = {}
    source = here / "gate.py"  # a file, so that the message can show the line
    source.write_text(auto)
    exec(compile(auto, str(source), "exec"), names)
    assert names["result"].format == "torchscript"
    said = capsys.readouterr().out
    assert "no pair: forward makes a Python number of a tensor's values" in said
    assert "if x.sum() > 0" in said

    (serve, *_) = examples("README.md")
    exec(serve, names)
    exec(weights, names)
    assert set(names["weights"]) == set(names["net"].state_dict())
    names["net"].register_buffer("scale", torch.ones(2), persistent=False)
    exec(migrated, names)
    with Server(here / "models", "cpu*1", here / "run", data=False) as server:
        with braid.connect(server.address) as client:
            assert [(each.name, each.version) for each in client.models()] == [
                ("gate", 1),
                ("mlp", 2),
            ]
            names["trainer"] = client.create_trainer(
                "mlp", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
            )
            batch = {"input": np.ones((4, 784), np.float32)}
            names["trainer"].step(batch, {"target": np.arange(4)})
            exec(loaded, names)
            assert names["result"].unexpected_keys == ["scale"]
            state = names["trainer"].state_dict()
            for name, tensor in names["net"].state_dict().items():
                np.testing.assert_array_equal(tensor.numpy(), state[name])
