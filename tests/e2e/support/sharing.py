"""Directories shared by the processes of pytest-xdist."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest


def make_once(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    parts: Iterable[str],
    make: Callable[[Path, str], None],
) -> Path:
    """Returns a directory of that `name` in which `make(directory / part, part)` has made each part.

    Each process makes the parts that no other process is making, then waits for the rest. No process
    may change them.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # The directory that contains each worker's own.
    directory, marks = root / name, root / f"{name}.parts"
    directory.mkdir(exist_ok=True)
    marks.mkdir(exist_ok=True)

    def made(part: str, wait: bool) -> bool:
        done = marks / f"{part}.done"
        with open(marks / f"{part}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not done.exists():
                shutil.rmtree(directory / part, ignore_errors=True)  # Left by a `make` that failed.
                make(directory / part, part)
                done.touch()
        return True

    for part in [part for part in parts if not made(part, wait=False)]:
        made(part, wait=True)
    return directory
