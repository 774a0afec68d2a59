from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "check_dashboards.py"


@pytest.fixture
def schemas(tmp_path: Path) -> Path:
    """Schemas of dashboards with a title and of one kind of panel without field options."""
    title = {"title": {"type": "string"}}
    closed = {"type": "object", "additionalProperties": False}
    dashboard = {"type": "object", "properties": title, "required": ["title"]}
    (tmp_path / "dashboard.json").write_text(json.dumps(dashboard))
    mode = {"mode": {"enum": ["list", "table"]}}
    (tmp_path / "stat-options.json").write_text(json.dumps({**closed, "properties": mode}))
    return tmp_path


def check(schemas: Path, **changes: object) -> subprocess.CompletedProcess:
    panel = {"type": "stat", "title": "p", "fieldConfig": {"defaults": {}}, "options": {}}
    variable = {"name": "v", "auto": False}
    dashboard = {"title": "d", "templating": {"list": [variable]}, "panels": [panel | changes]}
    path = schemas / "made.json"
    path.write_text(json.dumps(dashboard))
    return subprocess.run([sys.executable, SCRIPT, schemas, path], capture_output=True, text=True)


def test_valid_dashboard_passes(schemas: Path) -> None:
    done = check(schemas, options={"mode": "list"})
    assert (done.returncode, done.stderr) == (0, "")


def test_invalid_field_is_reported(schemas: Path) -> None:
    done = check(schemas, options={"mode": "tabel"})
    assert done.returncode == 1
    assert "p: stat-options mode: 'tabel'" in done.stderr


def test_kind_without_schema_is_an_error(schemas: Path) -> None:
    assert check(schemas, type="gauge").returncode == 1
