"""Ranges of inputs that index embeddings."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter.formats import aot  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402


class Lookups(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.large = torch.nn.Embedding(100, 4)
        self.small = torch.nn.Embedding(7, 4)
        self.bag = torch.nn.EmbeddingBag(30, 4)

    def forward(self, both, bags, shifted, plain):
        return (
            self.large(both) + self.small(both.unsqueeze(1).int()).squeeze(1)
            + self.bag(bags) + self.large(shifted * 2) + plain.unsqueeze(1)
        )


class Parts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, column, slice, padded, clamped):
        filled = padded.clone()
        filled[filled == -100] = 0
        return (
            self.table(column[:, 0]) + self.table(slice[:, 1:]).sum(1)
            + self.table(filled).sum(1) + self.table(clamped.clone().clamp_(0, 9)).sum(1)
        )


WORDS = torch.zeros(4, 3, dtype=torch.int64)
PARTS = {name: WORDS for name in ("column", "slice", "padded", "clamped")}
WORD = torch.zeros(4, dtype=torch.int64)
LOOKUPS = {"both": WORD, "bags": WORDS, "shifted": WORD, "plain": WORD}


def test_slices_and_inputs_written_in_place_have_no_range(tmp_path):
    result = braid.export(Parts(), PARTS, tmp_path / "m", "pair", precisions=())
    assert all("range" not in each for each in ExportedPair(result.path).part()["inputs"])


def test_range_is_that_of_the_smallest_embedding(tmp_path):
    result = braid.export(Lookups(), LOOKUPS, tmp_path / "m", "pair", precisions=())
    said = {each["name"]: each.get("range") for each in ExportedPair(result.path).part()["inputs"]}
    assert said == {"both": [0, 6], "bags": [0, 29], "shifted": None, "plain": None}


@pytest.mark.parametrize(
    ("module", "inputs", "ranges"),
    [(Parts, PARTS, {}), (Lookups, LOOKUPS, {"both": (0, 6), "bags": (0, 29)})],
)
def test_compiled_program_has_the_same_ranges(module, inputs, ranges):
    distinct = {name: each.clone() for name, each in inputs.items()}
    program = torch.export.export(module().eval(), (), distinct, strict=False)
    assert aot._ranges(program, inputs) == ranges
