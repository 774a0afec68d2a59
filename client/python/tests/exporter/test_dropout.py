"""Dropout draws what PyTorch draws from the same seed, and backward uses the same factors."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402

_FUSED = torch.ops.aten.native_dropout.default


class Arranged(torch.nn.Module):
    """Dropout of what `arrange` makes of a linear layer's output."""

    def __init__(self, arrange):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(0.3)
        self.arrange = arrange

    def forward(self, x):
        return self.dropout(self.arrange(self.linear(x))).flatten(1)


def export(path, module, x):
    """The exporter compares outputs and gradients with PyTorch's for the same seed."""
    pair = ExportedPair(braid.export(module, (x,), path, "pair", precisions=()).path)
    return {
        kind: [node.target for node in pair.programs[kind].graph.nodes] for kind in ("fw", "bw")
    }


@pytest.mark.parametrize("last", [True, False], ids=["last", "in between"])
def test_factors_are_drawn_once(tmp_path, last):
    layers = [torch.nn.Linear(4, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2)]
    module = torch.nn.Sequential(*layers[: 2 if last else 3])
    graphs = export(tmp_path / "m", module, torch.randn(5, 4))
    assert graphs["fw"].count(torch.ops.aten.bernoulli.p) == 1
    assert _FUSED not in graphs["fw"]
    assert torch.ops.aten.bernoulli.p not in graphs["bw"]


def test_what_is_not_laid_out_row_by_row_is_drawn_in_the_order_of_memory(tmp_path):
    module = Arranged(lambda y: y.view(-1, 2, 3, 4).permute(0, 3, 1, 2))
    graphs = export(tmp_path / "m", module, torch.randn(5, 6, 4))
    assert graphs["fw"].count(torch.ops.aten.bernoulli.p) == 1
    assert _FUSED not in graphs["fw"]


def test_what_has_gaps_in_memory_is_drawn_as_it_was(tmp_path):
    graphs = export(tmp_path / "m", Arranged(lambda y: y[:, 1:]), torch.randn(5, 3, 4))
    assert graphs["fw"].count(_FUSED) == 1
    assert _FUSED not in graphs["bw"]


def test_everything_dropped(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(1.0))
    graphs = export(tmp_path / "m", module, torch.randn(5, 4))
    assert torch.ops.aten.bernoulli.p not in graphs["fw"]
