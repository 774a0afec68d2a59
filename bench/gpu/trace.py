"""Computes a device's utilization and the gaps between kernels from a Chrome trace."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
# Used in place of kernels in traces of a CPU (dry runs).
ON_CPU = {"cpu_op"}


@dataclass(frozen=True)
class Occupancy:
    """busy: fraction of the time, from the first kernel's start to the last one's end, in which a
    kernel or copy ran. Gaps are the times between them, in microseconds."""

    busy: float
    gaps: int
    median_gap: float
    total_gap: float


def occupancy(path: Path) -> Occupancy:
    """Returns the occupancy of the trace's first device. ValueError if the trace has no kernel."""
    events = [each for each in json.loads(path.read_text())["traceEvents"] if "dur" in each]
    on_device = [each for each in events if each.get("cat") in ON_GPU] or [
        each for each in events if each.get("cat") in ON_CPU
    ]
    if not on_device:
        raise ValueError(f"{path}: no kernel in the trace")
    first = min(each.get("args", {}).get("device", 0) for each in on_device)
    return of_intervals(
        (float(each["ts"]), float(each["ts"]) + float(each["dur"]))
        for each in on_device
        if each.get("args", {}).get("device", 0) == first
    )


def of_intervals(intervals: Iterable[tuple[float, float]]) -> Occupancy:
    """Returns the occupancy for intervals, which may overlap (several streams)."""
    ordered = sorted(intervals)
    (start, end), gaps = ordered[0], []
    for begin, finish in ordered[1:]:
        if begin > end:
            gaps.append(begin - end)
        end = max(end, finish)
    span = end - start
    busy = 1 - sum(gaps) / span if span else 1.0
    return Occupancy(busy, len(gaps), statistics.median(gaps) if gaps else 0.0, sum(gaps))
