"""Tests of compose.yaml with Docker Compose's own parser."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from e2e.support.server import BINARY

from deploy.rendering import CHART, ROOT

DEPLOY = ROOT / "deploy"
READER = ROOT / "build/tools/compose-config"
FILES = {"cpu": ["compose.yaml"], "gpu": ["compose.yaml", "compose.gpu.yaml"]}

each = pytest.mark.parametrize("files", FILES.values(), ids=FILES.keys())


def read(files: list[str | Path]) -> dict:
    """Returns the merged files, with variables not expanded."""
    command = [READER, "-no-interpolation", "-format", "json", *files]
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@each
def test_compose_accepts_the_files(files: list[str]) -> None:
    assert set(read(files)["services"]) == {"braid", "prometheus", "grafana"}


def test_misspelt_key_is_rejected(tmp_path: Path) -> None:
    text = (DEPLOY / "compose.yaml").read_text().replace("cap_drop", "cap_drops")
    (tmp_path / "compose.yaml").write_text(text)
    with pytest.raises(AssertionError, match="cap_drops"):
        read([tmp_path / "compose.yaml"])


@each
def test_mounted_files_exist(files: list[str]) -> None:
    for service in read(files)["services"].values():
        for mount in service["volumes"]:
            if mount["type"] == "bind" and "$" not in mount["source"]:
                assert Path(mount["source"]).is_dir()
                assert mount["read_only"]


def test_third_party_images_are_pinned_by_digest() -> None:
    services = read(FILES["gpu"])["services"]
    images = {name: service["image"] for name, service in services.items() if name != "braid"}
    base = re.search("^ARG BASE=(.*)$", (DEPLOY / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert base
    for image in [*images.values(), base[1]]:
        assert re.fullmatch("[a-z./]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}", image), image


@each
def test_ports_are_published_on_loopback_only(files: list[str]) -> None:
    for service in read(files)["services"].values():
        assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}


@each
def test_server_flags_exist(files: list[str]) -> None:
    command = read(files)["services"]["braid"]["command"]
    known = subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True).stdout
    for flag in command:
        assert re.search(rf"{flag.split('=')[0]}\b", known)


def test_addresses_match() -> None:
    services = read(["compose.yaml"])["services"]
    flags = dict(flag.partition("=")[::2] for flag in services["braid"]["command"])
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
    targets = [target for job in scrape["scrape_configs"] for target in job["static_configs"]]
    assert targets[0] == {"targets": [f"braid:{flags['--metrics_port']}"]}
    [datasource] = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )["datasources"]
    assert datasource["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/braid.yaml").read_text()
    )["providers"]
    mounts = {mount["target"]: mount["source"] for mount in services["grafana"]["volumes"]}
    assert Path(mounts[provider["options"]["path"]]) == DEPLOY / "grafana/dashboards"
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == provider["options"]["path"] + "/fleet.json"
    assert (DEPLOY / "grafana/dashboards/fleet.json").exists()


def test_version_matches_the_chart() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    for name, image, variant in (
        ("cpu", f"braid:{version}-cpu", "cpu"),
        # The chart's version, which uses GPUs by default.
        ("gpu", f"braid:{version}", "cuda"),
    ):
        service = read(FILES[name])["services"]["braid"]
        assert (service["image"], service["build"]["args"]) == (image, [f"VARIANT={variant}"])


def test_image_is_built_from_this_checkout() -> None:
    build = read(["compose.yaml"])["services"]["braid"]["build"]
    assert Path(build["context"]) == ROOT
    assert (ROOT / build["dockerfile"]).exists()
