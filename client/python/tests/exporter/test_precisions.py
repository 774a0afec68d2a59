"""Precisions that cannot be exported: skipped by default, an error if requested."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter.checks import comparison  # noqa: E402
from braid.exporter.formats import package  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch._export.serde.serialize import SerializeError  # noqa: E402


class Cell(nn.Module):
    """Fails under autocast: the cell receives a state of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.layer(x))[0]


class Scattered(nn.Module):
    """Fails under autocast: scatter_add receives two dtypes. The error names the line."""

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
    (Scattered, "without bfloat16: forward() fails under autocast: RuntimeError: scatter(): "),
])
def test_default_precision_that_fails_is_skipped(tmp_path, make, reason, format):
    result = braid.export(make(), (torch.randn(3, 4),), tmp_path / "net", format)
    assert result.format == "pair" and result.reason.startswith(reason)
    assert precisions(result) == ["model"]


@pytest.mark.parametrize("make", [Cell, Scattered])
def test_requested_precision_that_fails_is_an_error(tmp_path, make):
    with pytest.raises(braid.ExportError, match="^precision bfloat16: ") as raised:
        braid.export(make(), (torch.randn(3, 4),), tmp_path / "net", "pair",
                     precisions=["bfloat16"])
    if make is Scattered:
        assert "in forward: return torch.zeros(x.shape[0], 4).scatter_add" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_precision_with_wrong_results_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "_LOW_TOLERANCE", -1.0)
    result = braid.export(nn.Linear(4, 2), (torch.randn(3, 4),), tmp_path / "net")
    assert result.reason.startswith("without bfloat16: the package does not match the model: ")
    assert precisions(result) == ["model"]


def test_precision_that_cannot_be_written_is_skipped(tmp_path, monkeypatch):
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


class Halves(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


STAGES = {
    # Modules with outputs in half precision, and in float32.
    "linear": lambda: Halves(nn.Linear(4, 6), nn.Linear(6, 3)),
    "tanh": lambda: Halves(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3)),
    "norm": lambda: Halves(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6)), nn.Linear(6, 3)),
    "batch norm": lambda: Halves(
        nn.Linear(4, 6), nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.0), nn.Linear(6, 3))
    ),
}


@pytest.mark.parametrize(
    "name, precision", [*((name, "bfloat16") for name in STAGES), ("norm", "float16")]
)
def test_stages_accept_the_dtype_of_the_previous_stage(tmp_path, name, precision):
    torch.manual_seed(3)
    module = STAGES[name]()
    result = braid.export(module, (torch.randn(3, 4),), tmp_path / "net", "pair",
                          stages=[["first", "second"]], precisions=[precision])
    pair = ExportedPair(result.path)
    x = torch.randn(7, 4)
    with torch.autocast("cpu", dtype=getattr(torch, precision), cache_enabled=False):
        expected = module.train()(x)
    expected.float().square().sum().backward()

    known = pair.state()
    middle = take(known, pair, "forward", "first", precision, x)
    y = take(known, pair, "forward", "second", precision, middle)
    torch.testing.assert_close(y, expected.detach(), rtol=0, atol=0)
    known["output_gradient", "output__0"] = 2 * y
    gradients = pair.run(pair.program("backward", "second", precision), known)
    given = gradients["input_gradient", "input"]
    assert given.dtype == middle.dtype

    take(known, pair, "forward", "first", precision, x)
    known["output_gradient", "output__0"] = given
    gradients |= pair.run(pair.program("backward", "first", precision), known)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(
            gradients["parameter_gradient", name], parameter.grad, rtol=0.02, atol=0.02
        )

    module.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=getattr(torch, precision)):
        expected = module(x)
    middle = take(pair.state(), pair, "eval", "first", precision, x)
    y = take(pair.state(), pair, "eval", "second", precision, middle)
    assert y.dtype == expected.dtype


def take(known, pair, kind, path, precision, given):
    """Runs a stage on `given`, adds its outputs to `known`, and returns the main one."""
    known["input", "input"] = given
    known |= pair.run(pair.program(kind, path, precision), known)
    return known["output", "output__0"]
