"""A benchmark in parts, of which the command line names those to run."""

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
    """Runs the parts that are named, or all, with what `make` makes in a folder that is removed
    afterwards; its second argument: whether `--short` was given. Returns the seconds it took."""
    # So that whatever was started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    short = "--short" in sys.argv[1:]
    names = [argument for argument in sys.argv[1:] if argument != "--short"] or list(parts)
    for name in names:
        if name not in parts:
            sys.exit(f"no part {name!r}: --short, {', '.join(parts)}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as folder:
        bench = make(Path(folder), short)
        for name in names:
            parts[name](bench)
    return time.monotonic() - start
