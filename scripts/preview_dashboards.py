#!/usr/bin/env python3
"""Draws the Grafana dashboards as pictures, with real data and without Grafana.

usage: scripts/preview_dashboards.py [--seconds N] [--output DIRECTORY | --docs]

  --seconds N         Length of the load, in seconds (default: 240)
  --output DIRECTORY  Folder of the pictures (default: build/dashboard-preview)
  --docs              Writes the pictures of the documentation, in docs/images/dashboards

Starts two servers on CPUs. The first one also has a fake NVML with two simulated GPUs. Puts them
under load (inference, streams, calls that fail, training, publishing, jobs, a model that cannot be
loaded), lets Prometheus scrape them, and draws each dashboard with Grafana's own components in
headless Chromium. Exits with status 1 if a panel has no data or cannot be drawn.

Needs scripts/setup_deploy.sh (Prometheus), Node.js with npm, and Chromium (/usr/bin/chromium, or
the program that the environment variable CHROMIUM names).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests")]

import braid
import numpy as np
from e2e.support import dashboard_load, models, protocol
from e2e.support.polling import wait_until
from e2e.support.prometheus import Prometheus
from e2e.support.server import Server

PREVIEW = ROOT / "deploy/grafana/preview"
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
# The README shows the top of the GPUs.
PICTURES = [*(f"{path.stem}.png" for path in DASHBOARDS), "gpus-top.png"]
DOCUMENTED = ROOT / "docs/images/dashboards"
SCRAPE_SECONDS = 5
# Until rates and quantiles have values over a whole window.
WARM_UP_SECONDS = 30
# A graph that ends at a full minute cuts off the last label of its axis.
END_SECOND = 50


def build_viewer() -> None:
    if not (PREVIEW / "node_modules").is_dir():
        subprocess.run(["npm", "ci"], cwd=PREVIEW, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=PREVIEW, check=True)


def make_repository(directory: Path) -> Path:
    """A model repository. One of its models cannot be loaded."""
    models.export_all(directory / "exported", "torchscript")
    repository = directory / "models"
    for name in dashboard_load.MODELS:
        shutil.copytree(directory / "exported" / name, repository / name)
    version = repository / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.pt").write_bytes(b"not an archive")
    return repository


def paced(work: Callable[[], object], seconds: float) -> Callable[[], None]:
    """Calls `work` about once in `seconds`. The pace rises and falls, as that of clients does."""

    def run() -> None:
        started = time.monotonic()
        work()
        until = started + seconds * (1 + 0.4 * math.sin(started / 20))
        time.sleep(max(until - time.monotonic(), 0))

    return run


def inference(client: braid.Client, stub: protocol.Stub) -> list[Callable[[], None]]:
    return [
        paced(lambda: dashboard_load.infer(client), 0.3),
        paced(lambda: dashboard_load.stream(stub, dashboard_load.STREAMED), 2),
    ]


def failures_and_training(client: braid.Client, stub: protocol.Stub) -> list[Callable[[], None]]:
    trainer = dashboard_load.create_trainer(client)
    # Uses each version that the trainer publishes.
    row = {"x": np.zeros((1, 10), np.float32)}
    return [
        paced(lambda: dashboard_load.fail(client, stub), 10),
        paced(lambda: dashboard_load.train(trainer), 1),
        paced(trainer.save_checkpoint, 20),
        paced(trainer.publish, 60),
        paced(lambda: client.infer("chain", row), 0.1),
    ]


def pause_and_resume(job: braid.Job) -> None:
    """Pauses a job that runs, for one scrape, and waits for its end."""
    wait_until(lambda: job.info().attempts > 0, seconds=600)
    job.pause()
    time.sleep(SCRAPE_SECONDS)
    job.resume()
    job.wait()


def jobs(client: braid.Client) -> list[Callable[[], None]]:
    """Starts a job that runs all the time in one of two slots. Others take turns in the second."""
    dashboard_load.submit_job(client, id="nightly", epochs=100_000, priority=1)
    kinds = itertools.cycle((
        lambda: dashboard_load.score(client).wait(),
        lambda: dashboard_load.fail_job(client),
        lambda: dashboard_load.submit_job(client, epochs=200).wait(),
        lambda: pause_and_resume(dashboard_load.submit_job(client, epochs=200)),
    ))  # fmt: skip
    return [
        paced(lambda: next(kinds)(), 5),
        # Preempts one of those.
        paced(lambda: dashboard_load.submit_job(client, epochs=100, priority=1).wait(), 40),
    ]


def run_load(directory: Path, seconds: int, draw: Callable[[str, float, float], None]) -> None:
    """Calls draw(address of Prometheus, start, end) after a load from `start` to `end`."""
    repository = make_repository(directory)
    gpus = dashboard_load.fake_driver(directory / "driver") | {"FAKE_NVML_SIMULATE": "1"}
    flags = ("--cpu_threads=1", *dashboard_load.job_flags(directory / "data"))
    (directory / "prometheus").mkdir()
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                Server(repository, devices, directory / name, flags, environment=environment)
            )
            for name, devices, environment in (("gpus", "cpu*2", gpus), ("cpu", "cpu", {}))
        ]
        works = []
        for server in servers:
            client = stack.enter_context(braid.connect(server.address))
            channel = stack.enter_context(protocol.channel(server.address))
            stub = protocol.Stub(channel, "inference.GRPCInferenceService")
            works += inference(client, stub)
            if server is servers[0]:
                works += failures_and_training(client, stub)
                works += jobs(client)
        config = dashboard_load.configuration(*servers, seconds=SCRAPE_SECONDS)
        prometheus = stack.enter_context(Prometheus(config, directory / "prometheus"))
        with dashboard_load.Load(*works):
            wait_until(lambda: len(prometheus.values("braid_build_info")) == len(servers))
            until = time.time() + WARM_UP_SECONDS + seconds
            until += (END_SECOND - until) % 60
            time.sleep(until - time.time())
        draw(prometheus.address, until - seconds, until)


def compress(picture: Path, output: Path) -> None:
    """Reduces a picture to 256 colours: the most frequent ones, for large areas, and 128 that are
    close to all others, for thin lines."""
    with Image.open(picture) as file:
        image = file.convert("RGB")
    counts = sorted(image.getcolors(image.width * image.height), reverse=True)
    frequent = [value for _, color in counts[:128] for value in color]
    others = image.quantize(128, Image.Quantize.MAXCOVERAGE).getpalette()[: 3 * 128]
    palette = Image.new("P", (1, 1))
    palette.putpalette(frequent + others)
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(output, optimize=True)


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
        "--seconds", type=int, default=240, help="length of the load (default: 240)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build/dashboard-preview",
        help="folder of the pictures (default: build/dashboard-preview)",
    )
    where.add_argument(
        "--docs",
        dest="output",
        action="store_const",
        const=DOCUMENTED,
        help="write the pictures of the documentation, in docs/images/dashboards",
    )
    arguments = parser.parse_args()
    build_viewer()

    with tempfile.TemporaryDirectory(prefix="braid-preview-") as directory:
        drawn = Path(directory) / "pictures"

        def draw(prometheus: str, start: float, end: float) -> None:
            command = ["node", PREVIEW / "capture.mjs", f"http://{prometheus}"]
            command += [str(int(start)), str(int(end)), drawn, *DASHBOARDS]
            subprocess.run(command, check=True)

        run_load(Path(directory), arguments.seconds, draw)
        empty = empty_panels(json.loads((drawn / "panels.json").read_text()))
        arguments.output.mkdir(parents=True, exist_ok=True)
        for picture in PICTURES:
            compress(drawn / picture, arguments.output / picture)
    for line in empty:
        print(line, file=sys.stderr)
    print(f"{len(DASHBOARDS)} dashboards in {arguments.output}")
    sys.exit(1 if empty else 0)


if __name__ == "__main__":
    main()
