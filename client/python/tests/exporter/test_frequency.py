"""Embeddings with scale_grad_by_freq, whose gradients need the whole batch."""

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.cli import main  # noqa: E402
from exported_pair import ExportedPair  # noqa: E402

WORDS = {"words": torch.randint(0, 10, (8, 3))}


class Lookup(torch.nn.Module):
    def __init__(self, scaled=True, frozen=False, mode=None):
        super().__init__()
        self.table = (
            torch.nn.EmbeddingBag(10, 4, mode=mode, scale_grad_by_freq=scaled) if mode
            else torch.nn.Embedding(10, 4, scale_grad_by_freq=scaled)
        )
        self.table.weight.requires_grad_(not frozen)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, words):
        found = self.table(words)
        return self.linear(found.sum(1) if found.dim() == 3 else found)


class Computed(Lookup):
    """Uses an embedding weight that is computed from a parameter."""

    def forward(self, words):
        found = torch.nn.functional.embedding(
            words, self.table.weight * 2, scale_grad_by_freq=True
        )
        return self.linear(found.sum(1))


def gradients(result):
    return {
        slot["name"]: slot.get("additive", True)
        for slot in ExportedPair(result.path).program("backward")["outputs"]
    }


@pytest.mark.parametrize("make", [Lookup, Computed, *(
    lambda mode=mode: Lookup(mode=mode) for mode in ("sum", "mean")
)])
def test_package_marks_gradients_that_need_the_whole_batch(make, tmp_path):
    result = braid.export(make(), WORDS, tmp_path / "m", "pair")
    assert gradients(result) == {
        "table.weight": False, "linear.weight": True, "linear.bias": True
    }
    [note] = result.notes
    assert "the gradient of 'table.weight' depends on index counts" in note


@pytest.mark.parametrize("options", [{"scaled": False}, {"frozen": True}])
def test_other_embeddings_have_no_note(options, tmp_path):
    result = braid.export(Lookup(**options), WORDS, tmp_path / "m", "pair", precisions=())
    assert all(gradients(result).values())
    assert result.notes == ()


@pytest.mark.parametrize("make, notes", [
    (Lookup, 1), (Computed, 1), (lambda: Lookup(mode="mean"), 1), (lambda: Lookup(scaled=False), 0)
])
def test_torchscript_export_returns_the_note(make, notes, tmp_path):
    result = braid.export(make(), WORDS, tmp_path / "m", "torchscript")
    assert len(result.notes) == notes
    assert all("scale_grad_by_freq" in note for note in result.notes)


def test_command_prints_the_note(tmp_path, capsys, monkeypatch):
    (tmp_path / "lookups.py").write_text(
        "import torch\n\n\ndef make():\n"
        "    return torch.nn.EmbeddingBag(10, 4, scale_grad_by_freq=True, mode='sum')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["lookups:make", "models/m", "--input", "input=INT64:3@0..9"]
    assert main(["export", *arguments]) == 0
    assert "note: scale_grad_by_freq: the gradient of 'weight'" in capsys.readouterr().err
