"""A precision that cannot be made: left out where it is there by default, refused by its name where
it was asked for."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter import check, package  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._export.serde.serialize import SerializeError  # noqa: E402


class Cell(nn.Module):
    """Autocast gives the cell a state of another type than its weights' product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.layer(x))[0]


class Scattered(nn.Module):
    """Autocast has two types meet where there may be one: said by a trace, with the line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(x.shape[0], 4).scatter_add(1, (x > 0).long(), self.layer(x))


def precisions(result):
    return [each["precision"] for each in ExportedPair(result.path).part()["programs"]]


@pytest.mark.parametrize("format", ["auto", "pair"])
@pytest.mark.parametrize("make, reason", [
    (Cell, "without bfloat16: RuntimeError: mat1 and mat2 must have the same dtype"),
    (Scattered, "without bfloat16: forward cannot be traced: RuntimeError: scatter(): Expected"),
])
def test_left_out_where_it_is_the_default(tmp_path, make, reason, format):
    result = braid.export(make(), (torch.randn(3, 4),), tmp_path / "net", format)
    assert result.format == "pair" and result.reason.startswith(reason)
    assert precisions(result) == ["model"]


@pytest.mark.parametrize("make", [Cell, Scattered])
def test_refused_where_it_was_asked_for(tmp_path, make):
    with pytest.raises(braid.ExportError, match="^precision bfloat16: ") as refused:
        braid.export(make(), (torch.randn(3, 4),), tmp_path / "net", "pair",
                     precisions=["bfloat16"])
    if make is Scattered:
        assert "in forward: return torch.zeros(x.shape[0], 4).scatter_add" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_left_out_where_it_computes_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_LOW_TOLERANCE", -1.0)
    result = braid.export(nn.Linear(4, 2), (torch.randn(3, 4),), tmp_path / "net")
    assert result.reason.startswith("without bfloat16: the package is not the model: output")
    assert precisions(result) == ["model"]


def test_left_out_where_it_cannot_be_written(tmp_path, monkeypatch):
    write = package.package_pt2

    def without_bfloat16(path, exported_programs, **others):
        if any(name.endswith("bfloat16") for name in exported_programs):
            raise SerializeError("no such type")
        return write(path, exported_programs=exported_programs, **others)

    monkeypatch.setattr(package, "package_pt2", without_bfloat16)
    result = braid.export(nn.Linear(4, 2), (torch.randn(3, 4),), tmp_path / "net")
    assert result.reason == "without bfloat16: torch.export cannot write a graph: no such type"
    assert precisions(result) == ["model"]
    pair = ExportedPair(result.path)
    given = pair.state() | {("input", "input"): torch.randn(2, 4)}
    assert pair.run(pair.program("eval"), given)["output", "output__0"].shape == (2, 2)
