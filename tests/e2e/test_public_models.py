"""Exports, serves and trains public models, and compares them with PyTorch.
scripts/long/train_foreign_pairs.py does so with all of them and writes docs/reference/models.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.support.public_models import ENTRIES, runner, table
from e2e.support.public_models.runner import Result
from e2e.support.server import ROOT


@pytest.mark.parametrize("name", ["gcn", "vae", "vit"])
def test_results_equal_pytorch(name: str, tmp_path: Path) -> None:
    result = runner.run(ENTRIES[name], tmp_path)
    assert (result.format, result.result, result.reason) == ("pair", runner.EQUAL, "")


def test_model_without_a_pair_is_refused_with_a_reason(tmp_path: Path) -> None:
    result = runner.run(ENTRIES["gcn_edge_list"], tmp_path)
    assert result.result == runner.REFUSED
    assert "'edges' has 2 rows (expected the same dim 0" in result.reason
    assert "into one padded row each" in result.reason


def test_table_of_different_results_is_not_written() -> None:
    results = {"gcn": Result("gcn", runner.DIFFERENT, "pair")}
    with pytest.raises(ValueError, match="results: gcn"):
        table.to_markdown(results, ENTRIES)


def test_table_lists_differences_and_reasons() -> None:
    results = {
        name: Result(name, runner.EQUAL, "pair", inference=2e-16, training={"1": 0.0, "3": 3e-15})
        for name in ENTRIES
    }
    results["gcn_edge_list"] = Result("gcn_edge_list", runner.REFUSED, reason="no\nbatch")
    page = table.to_markdown(results, ENTRIES)
    assert "| gcn | plain PyTorch | graphs | pair | edges | 3e-15 |" in page
    assert "| gcn_edge_list | PyTorch Geometric's layout | no |" in page


def test_page_lists_every_model() -> None:
    page = (ROOT / "docs/reference/models.md").read_text()
    assert [name for name in ENTRIES if f"| {name} |" not in page] == []
