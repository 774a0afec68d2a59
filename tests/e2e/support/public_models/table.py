"""Page of the documentation with a table of the public models."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from e2e.support.public_models.entry import Entry
from e2e.support.public_models.runner import (
    EQUAL,
    INFERENCE_ROWS,
    REFUSED,
    REPLICAS,
    STEPS,
    Result,
)

_INTRODUCTION = (
    "Public models that Braid has exported, served and trained, and how the results compare with "
    "PyTorch. `scripts/long/train_foreign_pairs.py` writes this page.",
    "For your own model, see [Which models can I use?](../guides/models.md)",
    "Every model has a small configuration, random weights, float64 and no dropout. The script "
    "exports it with `braid.export`, compares the outputs for batches of {rows} rows with each of "
    "its sizes, and trains {steps} steps on {replicas} CPU replicas. Outputs, losses, parameters "
    "and buffers must equal those of plain PyTorch to 1e-9, relative for values above 1. Batch "
    "norm is synchronized.",
    "The tables have {total} models. {pairs} equal PyTorch as pairs, {others} in another format, "
    "and {refused} refused with a reason.",
)
_HEADER = """
| Model | From | Task | Format | Sizes that vary | Largest difference |
|---|---|---|---|---|---|
"""
_TORCHSCRIPT = "TorchScript, which `braid.export` writes by itself"
_WITHOUT_PAIR = """
## Models without a pair

`braid.export` writes no pair for these, and says why:

| Model | From | Reason | Instead |
|---|---|---|---|
"""


def to_markdown(results: Mapping[str, Result], entries: Mapping[str, Entry]) -> str:
    """Lists the entries that have a result. Raises ValueError if one differs or failed."""
    named = [(entry, results[name]) for name, entry in entries.items() if name in results]
    wrong = [entry.name for entry, result in named if result.result not in (EQUAL, REFUSED)]
    if wrong:
        raise ValueError(f"results: {', '.join(wrong)} (expected equal or refused models)")
    equal = [(entry, result) for entry, result in named if result.result == EQUAL]
    pairs = sum(result.format == "pair" for _, result in equal)
    refused = len(named) - len(equal)
    numbers = {
        "rows": _listed(INFERENCE_ROWS),
        "steps": STEPS,
        "replicas": _listed(REPLICAS),
        "total": len(named),
        "pairs": pairs,
        "others": len(equal) - pairs,
        "refused": f"{refused} {'is' if refused == 1 else 'are'}",
    }
    text = "# Tested models\n"
    for paragraph in _INTRODUCTION:
        text += f"\n{textwrap.fill(paragraph.format(**numbers), 120, break_on_hyphens=False)}\n"
    text += _HEADER
    notes = sorted({entry.reason for entry, _ in equal if entry.reason})
    for entry, result in sorted(equal, key=lambda each: each[0].kind):
        largest = max(result.inference, *result.training.values())
        note = f" ({1 + notes.index(entry.reason)})" if entry.reason else ""
        cells = [entry.name, entry.source, entry.kind, result.format, _sizes(entry)]
        text += f"| {' | '.join(cells)} | {largest:.0e}{note} |\n"
    for number, note in enumerate(notes, start=1):
        text += f"\n({number}) The limit is {_limit(named, note):g}: {note}.\n"
    without = [(entry, result) for entry, result in named if result.format != "pair"]
    if without:
        text += _WITHOUT_PAIR
        for entry, result in without:
            reason = result.reason.partition("\n")[0].removeprefix("no pair: ").replace("|", "\\|")
            instead = _TORCHSCRIPT if result.format else entry.alternative
            text += f"| {entry.name} | {entry.source} | {reason} | {instead} |\n"
    return text


def _limit(named: list[tuple[Entry, Result]], note: str) -> float:
    return max(entry.tolerance for entry, _ in named if entry.reason == note)


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def _sizes(entry: Entry) -> str:
    names = sorted({name for sizes in entry.sizes for name in sizes}) if entry.dynamic else []
    return ", ".join(names) or "–"
