"""Tests of the examples in the chart's README and in the Kubernetes tutorial."""

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
TUTORIAL = ROOT / "docs/tutorials/kubernetes.md"


def commands(page: Path) -> list[str]:
    lines = "".join(fenced(page, "sh")).replace("\\\n", "").splitlines()
    return [line for line in lines if line.startswith("helm template")]


def write_files(page: Path, directory: Path) -> None:
    """Writes YAML blocks to the files named in their first lines."""
    for text in fenced(page, "yaml"):
        if name := re.match(r"# (\S+)\n", text):
            (directory / name[1]).write_text(text)


@pytest.mark.parametrize(
    ("page", "command"),
    [(page, command) for page in (README, TUTORIAL) for command in commands(page)],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_examples_render(page: Path, command: str, tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    write_files(page, tmp_path)
    path = f"{HELM.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    manifests = parse(done.stdout)
    assert manifests.server()
    for manifest in manifests:
        validate(manifest, KUBERNETES_VERSIONS[-1])


def test_pages_have_examples() -> None:
    assert len(commands(README)) >= 8
    assert len(commands(TUTORIAL)) >= 4


def test_adapter_rule_provides_the_metric_of_the_autoscaler() -> None:
    [text] = [text for text in fenced(README, "yaml") if text.startswith("rules:")]
    [rule] = yaml.safe_load(text)["rules"]
    values = {"autoscaling": {"kind": "HorizontalPodAutoscaler"}}
    [metric] = render_minimal(values).of("HorizontalPodAutoscaler")["spec"]["metrics"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]


def test_drain_table_has_the_defaults() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["drain"]
    row = r"^\| (?:at most )?(\d+) \|.*\| `(\w+)` \|$"
    rows = re.findall(row, README.read_text(), re.MULTILINE)
    assert {name: int(seconds) for seconds, name in rows} == values
