"""Dropout draws the same numbers as eager mode, and backward reuses its factors."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402

_FUSED = torch.ops.aten.native_dropout.default


class Arranged(torch.nn.Module):
    """Applies dropout to a rearranged output of a linear layer."""

    def __init__(self, arrange):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(0.3)
        self.arrange = arrange

    def forward(self, x):
        return self.dropout(self.arrange(self.linear(x))).flatten(1)


def export(path, module, x):
    """Exports the module, which compares outputs and gradients for the same seed."""
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


def test_factors_of_permuted_tensors_are_drawn_in_memory_order(tmp_path):
    module = Arranged(lambda y: y.view(-1, 2, 3, 4).permute(0, 3, 1, 2))
    graphs = export(tmp_path / "m", module, torch.randn(5, 6, 4))
    assert graphs["fw"].count(torch.ops.aten.bernoulli.p) == 1
    assert _FUSED not in graphs["fw"]


def test_dropout_of_a_tensor_with_gaps_stays_fused(tmp_path):
    graphs = export(tmp_path / "m", Arranged(lambda y: y[:, 1:]), torch.randn(5, 3, 4))
    assert graphs["fw"].count(_FUSED) == 1
    assert _FUSED not in graphs["bw"]


def test_probability_1_draws_nothing(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(1.0))
    graphs = export(tmp_path / "m", module, torch.randn(5, 4))
    assert torch.ops.aten.bernoulli.p not in graphs["fw"]
