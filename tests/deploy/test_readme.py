"""The examples of the chart's README work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.documents import fenced
from deploy.rendering import CHART, HELM, KUBERNETES_VERSIONS, ROOT, parse, render_minimal
from deploy.validation import validate

README = CHART / "README.md"


def commands() -> list[str]:
    lines = "".join(fenced(README, "sh")).replace("\\\n", "").splitlines()
    return [line for line in lines if line.startswith("helm template")]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Has the files that blocks name in their first line, and the repository's deploy/."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for text in fenced(README, "yaml"):
        if name := re.match(r"# (\S+)\n", text):
            (tmp_path / name[1]).write_text(text)
    return tmp_path


@pytest.mark.parametrize("command", commands())
def test_examples(command: str, directory: Path) -> None:
    path = f"{HELM.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    manifests = parse(done.stdout)
    assert manifests.server()
    for manifest in manifests:
        validate(manifest, KUBERNETES_VERSIONS[-1])


def test_there_are_examples() -> None:
    assert len(commands()) >= 8


def test_the_adapters_rule_makes_the_metric_that_is_asked_for() -> None:
    [text] = [text for text in fenced(README, "yaml") if text.startswith("rules:")]
    [rule] = yaml.safe_load(text)["rules"]
    values = {"autoscaling": {"kind": "HorizontalPodAutoscaler"}}
    [metric] = render_minimal(values).of("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]


def test_the_table_of_leaving_has_the_defaults() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["drain"]
    row = r"^\| (?:at most )?(\d+) \|.*\| `(\w+)` \|$"
    rows = re.findall(row, README.read_text(), re.MULTILINE)
    assert {name: int(seconds) for seconds, name in rows} == values
