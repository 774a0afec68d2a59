"""Readers of the files in --tracking_dir."""

from __future__ import annotations

import csv
import json
from pathlib import Path


def csv_values(folder: Path) -> dict[tuple[int, str], float]:
    """Returns the values by step and name. Fails if one is there twice, or steps decrease."""
    with open(folder / "metrics.csv", newline="") as file:
        rows = [(int(row["step"]), row["name"], float(row["value"])) for row in csv.DictReader(file)]
    values = {(step, name): value for step, name, value in rows}
    assert len(values) == len(rows)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    return values


def json_values(folder: Path) -> dict[tuple[int, str], float]:
    """Returns the values by step and name. Fails unless steps increase."""
    objects = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [each["step"] for each in objects]
    assert steps == sorted(set(steps))
    return {
        (each["step"], name): value
        for each in objects
        for name, value in each.items()
        if name not in ("step", "time")
    }
