"""Values of the exporter's comparisons: varied, but within ranges that the model accepts."""

import shutil

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter.model import rows  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Ratings(nn.Module):
    """Uses one column as an index of many users, the other as an index of few films."""

    def __init__(self):
        super().__init__()
        self.users, self.films, self.out = nn.Embedding(500, 4), nn.Embedding(5, 4), nn.Linear(4, 1)

    def forward(self, pairs):
        return self.out(self.users(pairs[:, 0]) * self.films(pairs[:, 1]))


class Table(nn.Module):
    """Input with a category column and a column of large numbers."""

    def __init__(self):
        super().__init__()
        self.kinds, self.out = nn.Embedding(10, 4), nn.Linear(5, 1)

    def forward(self, x):
        return self.out(torch.cat([self.kinds(x[:, 0].long()), x[:, 1:] / 50000], 1))


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, target):
        return F.binary_cross_entropy(torch.sigmoid(self.layer(x)), target)


class Drawn(nn.Module):
    """Requires probabilities as inputs, only in training."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) + (torch.bernoulli(x) if self.training else 0.0)


class Ends(nn.Module):
    """Start and length of a span stay in the table only for rows of the example."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(10, 4)

    def forward(self, spans):
        return self.places(spans.sum(1))


def ratings(count=16):
    return Ratings(), (torch.stack([torch.arange(count) + 480, torch.arange(count) % 5], 1),)


def table(count=16):
    income = torch.linspace(50000, 100, count)
    return Table(), (torch.stack([torch.arange(count) % 10 * 1.0, income], 1),)


def one_row_of_a_table():
    return Table(), (torch.tensor([[9.0, 50000.0]]),)


def loss():
    return Loss(), (torch.randn(8, 4), (torch.arange(32).reshape(8, 4) % 3 == 0).float())


def drawn():
    return Drawn(), (torch.rand(8, 4),)


def ends():
    return Ends(), (torch.tensor([[place, 9 - place] for place in range(10)]),)


def staged_ends():
    return nn.Sequential(Ends(), nn.Linear(4, 2)), *ends()[1:]


@pytest.mark.parametrize("format", ["pair", "torchscript"])
@pytest.mark.parametrize("make", [ratings, table, one_row_of_a_table, loss, drawn, ends])
def test_comparison_uses_values_that_the_model_accepts(tmp_path, make, format):
    assert braid.export(*make(), tmp_path / "net", format, precisions=()).format == format


def test_comparison_of_stages_uses_values_that_the_model_accepts(tmp_path):
    assert braid.export(*staged_ends(), tmp_path / "net", stages=[["0", "1"]], precisions=())


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_comparison_of_compiled_code_uses_values_that_the_model_accepts(tmp_path):
    assert braid.export(*ends(), tmp_path / "net", "aot")


@pytest.mark.parametrize("format", ["pair", "torchscript"])
def test_failure_for_the_example_itself_is_reported(tmp_path, format):
    module, (spans,) = ends()
    with pytest.raises(braid.ExportError, match="index out of range"):
        braid.export(module, (spans + 1,), tmp_path / "net", format, precisions=())


@pytest.mark.parametrize("example", [
    torch.tensor([[900, 3], [2, 19], [501, 0]]),
    torch.tensor([[0.0, 50000.0, 0.1], [9.0, 200.0, 0.9], [4.0, 31000.0, 1.0]]),
    torch.tensor([[True, False], [False, False]]),
], ids=lambda each: str(each.dtype))
def test_varied_values_stay_within_their_column(example):
    varied = rows.vary(example, 50, 3).double()
    assert (varied >= example.double().amin(0)).all() and (varied <= example.double().amax(0)).all()
    assert not torch.equal(varied, rows.repeat_rows(example, 50).double())
    if example.is_floating_point():
        assert varied.unique().numel() == varied.numel()


@pytest.mark.parametrize("example", [torch.zeros(4, 3), torch.rand(1, 8), torch.arange(8)[None]])
def test_equal_rows_are_varied(example):
    varied = rows.vary(example, 7, 0)
    assert not torch.equal(varied[0], varied[1])


def test_non_finite_values_keep_their_places():
    missing = torch.tensor([[float("nan"), 1.0, 2.0], [3.0, float("-inf"), 5.0], [6.0, 7.0, 8.0]])
    varied, repeated = rows.vary(missing, 9, 0), rows.repeat_rows(missing, 9)
    assert torch.equal(varied.isfinite(), repeated.isfinite())
    assert torch.equal(varied.isnan(), repeated.isnan())
    assert (varied != repeated)[repeated.isfinite()].all()
