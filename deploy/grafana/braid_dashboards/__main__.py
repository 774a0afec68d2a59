"""Writes the dashboards as JSON: python -m braid_dashboards DIRECTORY."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from braid_dashboards import fleet, gpus, inference, jobs, training

DASHBOARDS = {
    "fleet": fleet,
    "gpus": gpus,
    "inference": inference,
    "jobs": jobs,
    "training": training,
}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m braid_dashboards DIRECTORY")
    for name, module in DASHBOARDS.items():
        text = json.dumps(module.dashboard(), cls=JSONEncoder, indent=2, ensure_ascii=False)
        Path(sys.argv[1], f"{name}.json").write_text(text + "\n")


main()
