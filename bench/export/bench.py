#!/usr/bin/env python3
"""Measures the time that `braid.export` takes for an MLP of 100 M parameters and for BERT-base.

    PYTHONPATH=client/python bench/export/bench.py mlp
    PYTHONPATH=client/python bench/export/bench.py bert --check full

The weights are random. Prints the wall and processor time of each stage in seconds, as the export
reports them in its progress, and the largest memory. For a comparison with an earlier release, set
PYTHONPATH to its client.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import braid
import torch
from braid.exporter import progress
from torch import nn

_HIDDEN = 5000


class Classifier(nn.Module):
    """BERT-base with a classifier of two classes."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        self.bert = BertForSequenceClassification(BertConfig(num_labels=2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits


def mlp() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    layers = [each for _ in range(4) for each in (nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU())]
    return nn.Sequential(*layers), {"input": torch.randn(8, _HIDDEN)}


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    ids = torch.randint(0, 30000, (4, 32))
    return Classifier(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=("mlp", "bert"))
    parser.add_argument("--check", choices=("sample", "full"), help="default: the export's own")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    module, inputs = {"mlp": mlp, "bert": bert}[arguments.model]()
    options = {} if arguments.check is None else {"check": arguments.check}

    stages: list[tuple[str, float, float]] = []
    report = progress.stage

    def recorded(text: str) -> None:
        stages.append((text, time.monotonic(), time.process_time()))
        report(text)

    progress.stage = recorded
    recorded("checking arguments and importing the exporter")
    with tempfile.TemporaryDirectory() as folder:
        braid.export(module, inputs, Path(folder) / "model", **options)
    stages.append(("", time.monotonic(), time.process_time()))

    for (text, wall, cpu), (_, next_wall, next_cpu) in zip(stages, stages[1:]):
        print(f"{next_wall - wall:7.2f} s  {next_cpu - cpu:7.2f} s CPU  {text}")
    print(f"{stages[-1][1] - stages[0][1]:7.2f} s  {stages[-1][2] - stages[0][2]:7.2f} s CPU  total")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
