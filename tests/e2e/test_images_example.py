"""The example of jobs over images equals the same training in PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from e2e.support import durable, jobs
from e2e.support.jobs import tensor_of
from e2e.support.server import ROOT

EXAMPLE = ROOT / "examples/images"
SECONDS = 180
# Rounding errors grow with the steps, because the weights are random at first.
EPOCHS = 1
# Share of one of the 24 images for validation, in percent: its logits may be close to each other.
ONE_IMAGE = 4.2


def run(script: str, *arguments: Any) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout


def test_example_equals_pytorch(tmp_path: Path) -> None:
    run("dataset.py", tmp_path / "tables")
    run("export.py", tmp_path / "models")
    printed = re.fullmatch(
        r"loss ([\d.]+)  accuracy ([\d.]+)%\n", run("plain.py", tmp_path / "tables", EPOCHS)
    )
    assert printed
    # One replica: batch norm computes its statistics over the whole batch, as in PyTorch.
    with jobs.serving(tmp_path, devices="cpu*1") as server, durable.connect(server) as client:
        spec = yaml.safe_load((EXAMPLE / "train.yaml").read_text()) | {"epochs": EPOCHS}
        result = client.jobs.submit(spec).wait(timeout=SECONDS).result
        assert result.metrics["loss"] == pytest.approx(float(printed[1]), rel=0.02)
        assert 100 * result.metrics["accuracy"] == pytest.approx(float(printed[2]), abs=ONE_IMAGE)
        spec = yaml.safe_load((EXAMPLE / "score.yaml").read_text())
        output = client.jobs.submit(spec).wait(timeout=SECONDS).result.output
    scores = pq.read_table(output)
    right = tensor_of(scores, "logits").argmax(1) == np.asarray(scores["label"])
    assert 100 * right.mean() == pytest.approx(float(printed[2]), abs=ONE_IMAGE)
