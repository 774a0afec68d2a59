#!/usr/bin/env python3
"""Compares dashboards with JSON Schemas of Grafana's types; prints what differs, and then fails.

usage: check_dashboards.py SCHEMAS DASHBOARD...
SCHEMAS holds dashboard.json, and KIND-options.json and KIND-custom.json of kinds of panels.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

# Settings of other variable types; the SDK writes their defaults for all types.
_SURPLUS = {"auto", "auto_count", "auto_min"}


def parts(dashboard: dict) -> Iterator[tuple[str, str, Any]]:
    """Yields the path, the schema and the value of each part."""
    for variable in dashboard["templating"]["list"]:
        for key in _SURPLUS & variable.keys():
            del variable[key]
    yield "", "dashboard", dashboard
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            kind = panel["type"].replace("-", "")
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            yield panel["title"], f"{kind}-options", panel.get("options", {})
            yield panel["title"], f"{kind}-custom", custom


def differences(schemas: Path, dashboard: dict) -> Iterator[str]:
    for where, name, value in parts(dashboard):
        schema = schemas / f"{name}.json"
        # Some kinds have nothing of their own to set for a field.
        if not schema.exists() and name.endswith("-custom") and value == {}:
            continue
        for error in jsonschema.Draft7Validator(json.loads(schema.read_text())).iter_errors(value):
            path = "/".join(map(str, error.absolute_path))
            yield f"{where}: {name} {path}: {error.message}"


def main() -> None:
    found = [
        f"{path}: {difference}"
        for path in sys.argv[2:]
        for difference in differences(Path(sys.argv[1]), json.loads(Path(path).read_text()))
    ]
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main()
