"""The example of jobs over images reaches the accuracy of the same training in PyTorch."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from e2e.support import durable, examples, jobs
from e2e.support.jobs import tensor_of
from e2e.support.server import ROOT

EXAMPLE = ROOT / "examples/images"
SECONDS = 180
# Enough to classify almost all images.
EPOCHS = 5
# Share of one of the 24 images for validation, in percent.
ONE_IMAGE = 4.2


def test_example_reaches_the_accuracy_of_pytorch(tmp_path: Path) -> None:
    examples.run(EXAMPLE / "dataset.py", tmp_path / "tables")
    examples.run(EXAMPLE / "export.py", tmp_path / "models")
    printed = examples.run(EXAMPLE / "plain.py", tmp_path / "tables", EPOCHS)
    [wanted] = re.findall(r"accuracy ([\d.]+)%", printed)
    with jobs.serving(tmp_path, devices="cpu*2") as server, durable.connect(server) as client:
        spec = yaml.safe_load((EXAMPLE / "train.yaml").read_text()) | {"epochs": EPOCHS}
        result = client.jobs.submit(spec).wait(timeout=SECONDS).result
        assert 100 * result.metrics["accuracy"] == pytest.approx(float(wanted), abs=ONE_IMAGE)
        spec = yaml.safe_load((EXAMPLE / "score.yaml").read_text())
        output = client.jobs.submit(spec).wait(timeout=SECONDS).result.output
    scores = pq.read_table(output)
    right = tensor_of(scores, "logits").argmax(1) == np.asarray(scores["label"])
    assert right.mean() == pytest.approx(result.metrics["accuracy"])
    assert 100 * right.mean() > 90
