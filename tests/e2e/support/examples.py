"""Runs scripts of examples/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.support.server import ROOT


def run(script: Path, *arguments: Any, seconds: float = 180) -> str:
    """Returns what the script prints. It must succeed within `seconds`."""
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client/python")},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
