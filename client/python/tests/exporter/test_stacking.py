"""Gradients of selected parts are stacked instead of added."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402

_SELECT = torch.ops.aten.select_backward.default
_STACK = torch.ops.aten.stack.default


class Parts(torch.nn.Module):
    """Selects parts of a projection."""

    def __init__(self, chosen, dim):
        super().__init__()
        self.projection = torch.nn.Linear(4, 12)
        self.chosen = chosen
        self.dim = dim

    def forward(self, x):
        whole = self.projection(x).view(-1, 3, 4).movedim(1, self.dim)
        parts = [whole.select(self.dim, index) for index in self.chosen]
        return sum((1 + place) * part.tanh() for place, part in enumerate(parts))


def operators(path, module, x):
    """Returns the operators of the backward graph, whose gradients the exporter compares."""
    result = braid.export(module, (x,), path, "pair", precisions=())
    graph = ExportedPair(result.path).programs["bw"].graph
    return [node.target for node in graph.nodes]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_parts_are_stacked(tmp_path, dim):
    targets = operators(tmp_path / "m", Parts([2, 0, 1], dim), torch.randn(3, 4))
    assert targets.count(_STACK) == 1
    assert _SELECT not in targets


@pytest.mark.parametrize("chosen", [[0, 1], [0, 1, 2, 2]], ids=["too few", "twice"])
def test_incomplete_selections_are_added(tmp_path, chosen):
    targets = operators(tmp_path / "m", Parts(chosen, 1), torch.randn(3, 4))
    assert _STACK not in targets
    assert targets.count(_SELECT) == len(chosen)


def test_attention_copies_its_parts_once(tmp_path):
    module = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    targets = operators(tmp_path / "m", module, torch.randn(3, 5, 8))
    assert targets.count(_STACK) == 1
    assert _SELECT not in targets
