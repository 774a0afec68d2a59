"""Runs the parts of a benchmark that the command line names."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

Bench = TypeVar("Bench")


def run(
    parts: Mapping[str, Callable[[Bench], None]], make: Callable[[Path, bool], Bench]
) -> float:
    """Runs the named parts, or all.

    make(folder, short) creates the benchmark. folder is temporary, and short is whether `--short`
    was given. Returns the duration in seconds.
    """
    # Raises SystemExit, so that servers and other child processes are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    short = "--short" in sys.argv[1:]
    names = [argument for argument in sys.argv[1:] if argument != "--short"] or list(parts)
    for name in names:
        if name not in parts:
            sys.exit(f"unknown part {name!r} (expected --short or {', '.join(parts)})")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        bench = make(Path(folder), short)
        for name in names:
            parts[name](bench)
    return time.monotonic() - start
