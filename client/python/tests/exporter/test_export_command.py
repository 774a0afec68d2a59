"""Command line of `braid export`."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.cli import main  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8, kind="relu"):
        super().__init__()
        self.words = nn.Embedding(50, 4)
        self.features = nn.Linear(4, width)
        self.kind = kind

    def forward(self, x, words):
        return self.features(x + self.words(words).sum(1))


class Decides(Net):
    def forward(self, x, words):
        if x.sum() > 0:
            x = -x
        return super().forward(x, words)


ready = Net(3)


def broken():
    raise RuntimeError("out of ideas")
"""

INPUTS = ["--input", "x=FP32:4", "--input", "words=INT64:2@0..49"]


@pytest.fixture
def models(tmp_path, monkeypatch):
    (tmp_path / "shell_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shell_models", raising=False)
    return tmp_path


def test_command_runs_as_a_program(models):
    command = [sys.executable, "-m", "braid", "export", "shell_models:Net", "repository/net"]
    environment = os.environ | {"PYTHONPATH": str(Path(braid.__file__).parents[1])}
    result = subprocess.run([*command, *INPUTS], env=environment, capture_output=True, text=True,
                            timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "repository/net/1: pair\n"
    assert ExportedPair(models / "repository/net/1").part()["inputs"] == [
        {"name": "x", "dtype": "FP32", "shape": ["batch", 4]},
        {"name": "words", "dtype": "INT64", "shape": ["batch", 2], "range": [0, 49]},
    ]


def test_options_set_arguments_weights_and_precision(models, monkeypatch):
    monkeypatch.syspath_prepend(models)
    shell_models = importlib.import_module("shell_models")
    torch.manual_seed(9)
    wanted = shell_models.Net(5)
    torch.save(wanted.state_dict(), "weights.pt")
    np.save("x.npy", np.random.rand(6, 4).astype(np.float32))
    assert main(["export", "shell_models:Net", "net", "--set", "width=5", "--set", "kind=gelu",
                 "--weights", "weights.pt", "--precision", "none", "--format", "pair",
                 "--input", "x=x.npy", "--input", "words=INT64:2@0..49", "--rows", "6"]) == 0
    pair = ExportedPair(models / "net/1")
    assert torch.equal(pair.tensors["features.weight"], wanted.features.weight)
    assert [each["precision"] for each in pair.part()["programs"]] == ["model"]


def test_existing_module_is_exported(models, capsys):
    names = ["--output-name", "scores"]
    assert main(["export", "shell_models:ready", "net", *INPUTS, "--precision", "none", *names]) == 0
    assert capsys.readouterr().out == "net/1: pair\n"
    pair = ExportedPair(models / "net/1")
    assert pair.tensors["features.bias"].shape == (3,)
    assert [each["name"] for each in pair.part()["outputs"]] == ["scores"]


def test_dims_may_vary(models):
    arguments = ["shell_models:Net", "net", *INPUTS, "--precision", "none"]
    assert main(["export", *arguments, "--dynamic", "words:1=length:1..16"]) == 0
    pair = ExportedPair(models / "net/1")
    assert pair.part()["inputs"][1]["shape"] == ["batch", "length"]
    assert pair.json["symbols"] == [{"name": "length", "min": 1, "max": 16}]


def test_result_is_printed_as_json(models, capsys):
    arguments = ["export", "shell_models:ready", "net", *INPUTS, "--precision", "none", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": "net/1", "format": "pair", "version": 1, "reason": "", "notes": []
    }


def test_notes_explain_the_format(models, capsys):
    assert main(["export", "shell_models:Decides", "net", *INPUTS, "--precision", "none"]) == 0
    said = capsys.readouterr()
    assert said.out == "net/1: torchscript\n"
    assert said.err.startswith("note: no pair: forward() converts a tensor's values")
    assert "shell_models.py, line 19, in forward: if x.sum() > 0:" in said.err


@pytest.mark.parametrize("arguments, reason", [
    (["shell_models:Decides", "net", *INPUTS, "--format", "pair"], "line 19, in forward"),
    (["shell_models:broken", "net", *INPUTS], "RuntimeError: out of ideas ("),
    (["shell_models:Nett", "net", *INPUTS], "has no attribute 'Nett'"),
    (["shell_modelz:Net", "net", *INPUTS], "No module named 'shell_modelz'"),
    (["shell_models:SOURCE", "net", *INPUTS], "AttributeError"),
    (["builtins:dict", "net", *INPUTS], "builtins:dict: a dict (expected a torch.nn.Module)"),
    (["shell_models:Net", "net", *INPUTS, "--weights", "none.pt"], "none.pt: cannot be loaded"),
    (["shell_models:Net", "net", "--input", "x=none.npy", "--input", "words=INT64:2"],
     "none.npy: cannot be read"),
    (["shell_models:Net", "net", "--input", "x=FP32:3", "--input", "words=INT64:2"],
     "forward() fails for a batch of"),
    (["shell_models:Net", "net", "--input", "x=FP32:4", "--input", "words=INT64:2@60..70"],
     "forward() fails"),
])
def test_failure_exits_with_status_1(models, capsys, arguments, reason):
    assert main(["export", *arguments]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("braid: ")
    assert reason in said.err and "Traceback" not in said.err
    assert not (models / "net").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_an_error(models, capsys):
    assert main(["export", "shell_models:Net", "net", *INPUTS, "--device", "cuda"]) == 1
    assert "--device: 'cuda', but this machine has no GPU" in capsys.readouterr().err


@pytest.mark.parametrize("arguments, reason", [
    ([], "MODULE:CALLABLE: missing"),
    (["shell_models:Net", "net"], "--input"),
    (["shell_models", "net", *INPUTS], "MODULE:CALLABLE: invalid value 'shell_models' (expected for example mymodels:make_net)"),
    (["shell_models:Net", "net", "--input", "x"], "--input: invalid value 'x' (expected NAME=DTYPE"),
    (["shell_models:Net", "net", "--input", "x=FP31:4"], "--input: 'x=FP31:4' has an unknown dtype (expected one of: BOOL"),
    (["shell_models:Net", "net", "--input", "x=FP32:4,3"], "expected dims such as 3x224x224"),
    (["shell_models:Net", "net", "--input", "x=FP32:0"], "expected dims of 1 or more"),
    (["shell_models:Net", "net", "--input", "x=INT64@5..1"], "a range that is not empty"),
    (["shell_models:Net", "net", *INPUTS, "--input", "x=FP32:4"], "--input: duplicate name (expected each input once)"),
    (["shell_models:Net", "net", "--input", "x=FP32:4"], "lacks 'words', which forward() requires"),
    (["shell_models:Net", "net", *INPUTS, "--set", "width"], "--set: invalid value 'width' (expected NAME=VALUE)"),
    (["shell_models:Net", "net", *INPUTS, "--rows", "0"], "--rows: 0 is out of range (expected a whole number, 1 or more)"),
    (["shell_models:Net", "net", *INPUTS, "--device", "abacus"], "--device"),
    (["shell_models:Net", "net", *INPUTS, "--device", "mps"], "--device: invalid value 'mps' (expected cpu, cuda, or "),
    (["shell_models:Net", "net", *INPUTS, "--device", "meta"], "--device: invalid value 'meta' (expected cpu, cuda, or "),
    (["shell_models:Net", "net", *INPUTS, "--seed", "-1"], "--seed: -1 is out of range (expected a whole number from 0 to "),
    (["shell_models:Net", "net", "--input", "x=INT64@0..99999999999999999999"],
     "expected a range within -9223372036854775808..9223372036854775806"),
    (["shell_models:Net", "net", "--input", "x=INT8@0..200"], "a range within -128..127"),
    (["shell_models:Net", "net", "--input", "x=FP32:99999999999999999999"],
     "--input: cannot create 4 rows of "),
    (["shell_models:Net", "net", *INPUTS, "--dynamic", "words=length"],
     "--dynamic: invalid value 'words=length' (expected INPUT:DIM=NAME[:MIN..MAX])"),
    (["shell_models:Net", "net", *INPUTS, "--dynamic", "words:1=one", "--dynamic", "words:1=two"],
     "--dynamic: invalid value 'words:1=two' (expected each dim once)"),
    (["shell_models:Net", "net", *INPUTS, "--dynamic", "ids:1=length"],
     "dynamic: unknown input 'ids' (expected one of x, words)"),
    (["shell_models:Net", "net", *INPUTS, "--format", "onnx"], "--format: invalid value 'onnx' (expected auto, pair, torchscript, aot)"),
    (["shell_models:Net", "net", *INPUTS, "--stages", "features,head"], "no submodule 'head'"),
    (["shell_models:Net", "net", *INPUTS, "--eval-modules", "features", "--eval-modules", "bn"],
     "eval_modules: 'bn' matches no submodule"),
])
def test_usage_error_exits_with_status_2(models, capsys, arguments, reason):
    assert main(["export", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not (models / "net").exists()


def test_help_lists_all_options(capsys):
    assert main(["export", "--help"]) == 0
    said = capsys.readouterr().out
    assert "braid export mymodels:make_net models/net --input x=FP32:784" in said
    for option in ("--input", "--set", "--weights", "--device", "--format", "--stages",
                   "--dynamic", "--precision", "--eval-modules", "--rows", "--seed"):
        assert option in said
