"""Tests that the dashboards match their modules and are complete and valid."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.rendering import ROOT

GRAFANA = ROOT / "deploy/grafana"
PROMTOOL = ROOT / "build/tools/promtool"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
# Variables that Grafana provides.
BUILT_IN = {"__rate_interval", "__range"}

each = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def panels(dashboard: dict) -> list[dict]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard: dict) -> list[str]:
    return [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]


def test_json_matches_the_modules(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts/dashboards.sh", tmp_path], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in FILES}


def test_there_are_five_dashboards() -> None:
    assert [path.stem for path in FILES] == ["fleet", "gpus", "inference", "jobs", "training"]
    dashboards = [read(path) for path in FILES]
    assert len({dashboard["uid"] for dashboard in dashboards}) == 5
    for dashboard in dashboards:
        assert dashboard["tags"] == dashboard["links"][0]["tags"] == ["braid"]


@each
def test_every_panel_has_a_description(path: Path) -> None:
    dashboard = read(path)
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert numbers == list(dict.fromkeys(numbers))
    titles = [(panel["type"], panel["title"]) for panel in panels(dashboard)]
    assert titles == list(dict.fromkeys(titles))
    for panel in panels(dashboard):
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@each
def test_series_of_a_panel_have_distinct_legends(path: Path) -> None:
    for panel in panels(read(path)):
        if panel["type"] in ("timeseries", "bargauge", "state-timeline"):
            for target in panel["targets"]:
                legend = re.findall(r"{{(\w+)}}", target["legendFormat"])
                by = re.match(r"\w+ by \(([^)]*)\)", target["expr"])
                assert legend and (by is None or set(legend) <= set(by[1].split(", "))), panel


@each
def test_panels_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read(path)["panels"]:
        grid = panel["gridPos"]
        assert grid.get("x", 0) + grid["w"] <= 24
        cells = {
            (grid.get("x", 0) + x, grid["y"] + y)
            for x in range(grid["w"])
            for y in range(grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@each
def test_used_variables_are_defined(path: Path) -> None:
    dashboard = read(path)
    variables = dashboard["templating"]["list"]
    names = {variable["name"] for variable in variables}
    assert {"datasource", "job", "instance"} <= names
    used = set(re.findall(r"\$(\w+)", " ".join(queries(dashboard))))
    assert used <= names | BUILT_IN
    # Every variable is used.
    assert names - used == {"datasource"}


@each
def test_queries_are_valid_promql(path: Path, tmp_path: Path) -> None:
    rules = [
        {"record": f"r{number}", "expr": re.sub(r"\[\$\w+\]", "[1m]", query)}
        for number, query in enumerate(queries(read(path)))
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_runbook_names_existing_panels() -> None:
    text = " ".join((ROOT / "docs/runbook.md").read_text().split())
    titles = {path.stem: {panel["title"] for panel in panels(read(path))} for path in FILES}
    dashboard = r"(Fleet|GPUs|Inference|Jobs|Training)\*"
    named = re.findall(rf"\*{dashboard}, \*(?!{dashboard})([^*]+)\*", text)
    assert named
    assert [(name, title) for name, _, title in named if title not in titles[name.lower()]] == []


def test_gpu_dashboard_starts_with_utilization() -> None:
    first = panels(read(GRAFANA / "dashboards/gpus.json"))[0]
    assert "braid_gpu_utilization_ratio" in first["targets"][0]["expr"]
    assert "by (instance, gpu)" in first["targets"][0]["expr"]


@each
def test_inference_queries_include_streamed_requests(path: Path) -> None:
    """Checks that graphs have data if clients use only one of the methods."""
    for query in queries(read(path)):
        for method in re.findall(r'method=~?"([^"]*)"', query):
            assert re.fullmatch(method, "ModelInfer"), query
            assert re.fullmatch(method, "ModelStreamInfer"), query


def test_provisioning() -> None:
    [datasource] = yaml.safe_load(
        (GRAFANA / "provisioning/datasources/prometheus.yaml").read_text()
    )["datasources"]
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())["global"]
    assert datasource["type"] == "prometheus"
    # Grafana computes rates over four times this interval, which must cover at least two scrapes.
    assert datasource["jsonData"]["timeInterval"] == scrape["scrape_interval"]
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/braid.yaml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
