#!/usr/bin/env python3
"""Draws the Grafana dashboards as pictures, with real data and without Grafana.

usage: scripts/preview_dashboards.py [--seconds N] [--output DIRECTORY]

  --seconds N         Length of the load, in seconds (default: 120)
  --output DIRECTORY  Folder of the pictures (default: build/dashboard-preview)

Starts a server on two CPU replicas with a fake NVML of two GPUs, puts it under load (inference,
streams, calls that fail, training, publishing, a model that cannot be loaded), lets Prometheus
scrape it each second, and draws each dashboard with Grafana's own components in headless Chromium.
Exits with status 1 if a panel has no data or cannot be drawn.

Needs scripts/setup_deploy.sh (Prometheus), Node.js with npm, and Chromium (/usr/bin/chromium, or
the program that the environment variable CHROMIUM names).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests")]

import braid
from e2e.support import dashboard_load, models, protocol
from e2e.support.polling import wait_until
from e2e.support.prometheus import Prometheus
from e2e.support.server import Server

PREVIEW = ROOT / "deploy/grafana/preview"
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
PUBLISH_SECONDS = 15


def build_viewer() -> None:
    if not (PREVIEW / "node_modules").is_dir():
        subprocess.run(["npm", "ci"], cwd=PREVIEW, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=PREVIEW, check=True)


def add_broken_model(repository: Path) -> None:
    """A folder with a model file that the server cannot load."""
    version = repository / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.pt").write_bytes(b"not an archive")


def publish(trainer: braid.Trainer) -> None:
    trainer.publish()
    time.sleep(PUBLISH_SECONDS)


def run_load(directory: Path, seconds: int, draw: Callable[[str, float, float], None]) -> None:
    """Calls draw(address of Prometheus, start, end) while a loaded server is being watched."""
    exported = directory / "exported"
    models.export_all(exported, "torchscript")
    repository = directory / "models"
    for name in dashboard_load.MODELS:
        shutil.copytree(exported / name, repository / name)
    (directory / "driver").mkdir()
    (directory / "prometheus").mkdir()
    environment = dashboard_load.fake_driver(directory / "driver")
    add_broken_model(repository)
    server = Server(
        repository, "cpu*2", directory / "run", ("--cpu_threads=1",), environment=environment
    )
    server.start()
    try:
        with (
            Prometheus(
                dashboard_load.configuration(server), directory / "prometheus"
            ) as prometheus,
            braid.connect(server.address) as client,
            protocol.channel(server.address) as channel,
        ):
            stub = protocol.Stub(channel, "inference.GRPCInferenceService")
            trainer = dashboard_load.create_trainer(client)
            works = dashboard_load.calls(client, stub, trainer)
            for work in works:
                work()
            wait_until(lambda: prometheus.values("braid_build_info") != [])
            start = time.time()
            with dashboard_load.Load(*works, lambda: publish(trainer)):
                time.sleep(seconds)
            draw(prometheus.address, start, time.time())
        server.stop()
    finally:
        server.kill()


def empty_panels(panels: dict[str, list[dict]]) -> list[str]:
    return [
        f"{dashboard}: {panel['title']}: {panel.get('error', 'no data')}"
        for dashboard, drawn in panels.items()
        for panel in drawn
        if not panel["hasData"] or "error" in panel
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws the Grafana dashboards as pictures.")
    parser.add_argument(
        "--seconds", type=int, default=120, help="length of the load (default: 120)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build/dashboard-preview",
        help="folder of the pictures (default: build/dashboard-preview)",
    )
    arguments = parser.parse_args()
    build_viewer()

    def draw(prometheus: str, start: float, end: float) -> None:
        command = ["node", PREVIEW / "capture.mjs", f"http://{prometheus}"]
        command += [str(int(start)), str(int(end)), arguments.output, *DASHBOARDS]
        subprocess.run(command, check=True)

    with tempfile.TemporaryDirectory(prefix="braid-preview-") as directory:
        run_load(Path(directory), arguments.seconds, draw)
    empty = empty_panels(json.loads((arguments.output / "panels.json").read_text()))
    for line in empty:
        print(line, file=sys.stderr)
    print(f"{len(DASHBOARDS)} pictures in {arguments.output}")
    sys.exit(1 if empty else 0)


if __name__ == "__main__":
    main()
