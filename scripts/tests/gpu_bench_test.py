"""Tests of bench/gpu (arguments, figures and traces) and of the GPU scripts' argument checks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in (".", "tests", "client/python")]

from bench.gpu import gpu
from bench.gpu import trace as gpu_trace


def event(start: float, duration: float, category: str = "kernel", device: int = 0) -> dict:
    return {"ts": start, "dur": duration, "cat": category, "args": {"device": device}}


def write_trace(path: Path, *events: dict) -> Path:
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))
    return path


def test_gaps_are_times_without_kernels_on_any_stream(tmp_path: Path) -> None:
    found = gpu_trace.occupancy(
        write_trace(
            tmp_path / "trace.json",
            event(10, 10),
            event(15, 10, "gpu_memcpy"),  # beside the first, on another stream
            event(45, 5),
            event(60, 10),
            event(0, 1000, "cpu_op"),
            event(25, 20, device=1),
        )
    )
    assert found == gpu_trace.Occupancy(busy=0.5, gaps=2, median_gap=15, total_gap=30)


def test_a_trace_of_a_cpu_has_operators_in_place_of_kernels(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.json", event(0, 4, "cpu_op"), event(6, 2, "cpu_op"))
    assert gpu_trace.occupancy(trace).busy == 0.75


def test_a_trace_without_kernels_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no kernel"):
        gpu_trace.occupancy(write_trace(tmp_path / "trace.json"))


def test_ratios_are_computed_per_round() -> None:
    sides = {"Braid": [2.0, 9.0, 8.0], "eager": [1.0, 3.0, 4.0]}
    row = gpu.table_row(gpu.Figure("training", "bert, batch 8", "rows/s", sides))
    assert row == "| bert, batch 8 | rows/s | 8 | 3 | 2.00 | 2.00 to 3.00 |  | |  |"
    assert row.count("|") == gpu.HEADING.splitlines()[0].count("|")


def test_ratio_to_zero_is_infinite() -> None:
    sides = {"Braid": [2.0], "compiled": [0.0]}
    assert gpu.Figure("gaps", "bert", "gaps", sides).ratios("compiled") == [math.inf]


def test_arguments() -> None:
    options = gpu.parse(["--devices", "cpu*2", "--small", "training", "gaps"])
    assert (options.devices, options.parts) == ("cpu*2", ["training", "gaps"])
    assert options.small and not options.short and not options.no_compile


@pytest.mark.parametrize("arguments", [["speed"], ["--short", "--small"], ["--device=cpu", "x"]])
def test_invalid_arguments_are_rejected(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.parse(arguments)


@pytest.mark.parametrize("plan", gpu.PLANS)
def test_a_plan_names_models_and_precisions_that_there_are(plan: str) -> None:
    for point in (*gpu.PLANS[plan].inference, *gpu.PLANS[plan].training):
        assert point.model in gpu.gpu_models.FULL and point.model in gpu.gpu_models.SMALL
        assert point.precision in gpu.gpu_models.PRECISIONS


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "usage:"),
        (["--fast", "bundle"], 2, "usage:"),
        (["bundle", "spee"], 1, "no stage 'spee'"),
        (["/nonexistent"], 1, "no file '/nonexistent'"),
    ],
)
def test_check_rejects_invalid_arguments(arguments: list[str], status: int, words: str) -> None:
    command = [str(ROOT / "scripts/gpu_check.sh"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert words in done.stderr


def test_bundle_requires_a_build(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts/gpu_bundle.sh"), str(tmp_path / "bundle.tar.xz")],
        env={"PATH": "/usr/bin:/bin", "TORCH": "1.0.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "run TORCH=1.0.0 scripts/setup.sh" in done.stderr
    assert not (tmp_path / "bundle.tar.xz").exists()
