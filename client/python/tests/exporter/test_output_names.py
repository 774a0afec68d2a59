"""Names of outputs: from the module's dict, dataclass or named tuple, or given at export."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid import _protocol  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from torch import nn  # noqa: E402

X = {"x": torch.randn(4, 3)}


class Named(NamedTuple):
    logits: torch.Tensor
    scores: torch.Tensor


@dataclass
class Record:
    logits: torch.Tensor
    hidden: Named
    loss: torch.Tensor | None = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)


class ReturnsNamed(Net):
    def forward(self, x):
        y = self.layer(x)
        return Named(y, y.sigmoid())


class ReturnsRecord(Net):
    def forward(self, x):
        y = self.layer(x)
        return Record(y, Named(y + 1, y.sigmoid()))


class ReturnsTuple(Net):
    def forward(self, x):
        y = self.layer(x)
        return y, y.sigmoid()


class ReturnsDict(Net):
    def forward(self, x):
        y = self.layer(x)
        return {"a": y, "b": y.sigmoid()}


def export(module, path, format, **options):
    options.setdefault("precisions", [] if format == "pair" else None)
    return braid.export(module, X, path, format, **options)


def outputs(path):
    config = _protocol.message("inference.ModelConfig")()
    text_format.Parse((path / "config.pbtxt").read_text(), config)
    return [each.name for each in config.output]


@pytest.mark.parametrize("format, module, options, names", [
    ("pair", ReturnsNamed, {}, ["logits", "scores"]),
    ("pair", ReturnsRecord, {}, ["logits", "hidden.logits", "hidden.scores"]),
    ("pair", ReturnsDict, {"output_names": ["one", "two"]}, ["one", "two"]),
    ("torchscript", ReturnsNamed, {}, ["logits", "scores"]),
    ("torchscript", ReturnsTuple, {"output_names": ["one", "two"]}, ["one", "two"]),
    ("torchscript", ReturnsTuple, {}, ["output__0", "output__1"]),
])
def test_configuration_has_the_names(tmp_path, format, module, options, names):
    export(module(), tmp_path, format, **options)
    assert outputs(tmp_path) == names


@pytest.mark.parametrize("names, error, message", [
    ("ab", TypeError, r"output_names: 'ab' \(expected a list of str\)"),
    (["a", "a"], ValueError, "output_names: 'a' .*not empty or equal"),
    (["a", ""], ValueError, "output_names: ''"),
    (["a", "b__0"], ValueError, "output_names: 'b__0' is output 1"),
    (["a"], braid.ExportError, r"^output_names: 1 name for 2 outputs \(output__0, output__1\)$"),
])
def test_invalid_names_are_rejected(tmp_path, names, error, message):
    with pytest.raises(error, match=message):
        export(ReturnsTuple(), tmp_path / "net", "auto", output_names=names)
    assert not (tmp_path / "net").exists()


def test_script_has_all_keys_or_none(tmp_path):
    with pytest.raises(braid.ExportError, match="output_names: b, a, but forward.. returns a, b"):
        export(ReturnsDict(), tmp_path / "net", "torchscript", output_names=["b", "a"])
