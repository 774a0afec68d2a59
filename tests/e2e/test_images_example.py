"""The example of jobs over images reaches the accuracy of the same training in PyTorch."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
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


@dataclass
class Example:
    """Folder with the images and the model, and the accuracy of PyTorch in percent."""

    folder: Path
    accuracy: float


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    folder = tmp_path_factory.mktemp("images")
    examples.run(EXAMPLE / "dataset.py", folder / "tables")
    examples.run(EXAMPLE / "export.py", folder / "models")
    printed = examples.run(EXAMPLE / "plain.py", folder / "tables", EPOCHS)
    accuracy = re.fullmatch(r"loss [\d.]+  accuracy ([\d.]+)%\n", printed)
    assert accuracy
    return Example(folder, float(accuracy[1]))


@pytest.mark.parametrize("devices", ["cpu*1", "cpu*2"])
def test_example_reaches_the_accuracy_of_pytorch(
    example: Example, tmp_path: Path, devices: str
) -> None:
    for name in ("tables", "models"):
        shutil.copytree(example.folder / name, tmp_path / name)
    with jobs.serving(tmp_path, devices=devices) as server, durable.connect(server) as client:
        spec = yaml.safe_load((EXAMPLE / "train.yaml").read_text()) | {"epochs": EPOCHS}
        result = client.jobs.submit(spec).wait(timeout=SECONDS).result
        assert 100 * result.metrics["accuracy"] == pytest.approx(example.accuracy, abs=ONE_IMAGE)
        spec = yaml.safe_load((EXAMPLE / "score.yaml").read_text())
        output = client.jobs.submit(spec).wait(timeout=SECONDS).result.output
    scores = pq.read_table(output)
    right = tensor_of(scores, "logits").argmax(1) == np.asarray(scores["label"])
    assert right.mean() == pytest.approx(result.metrics["accuracy"])
    assert 100 * right.mean() > 90
