from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import torch

SCRIPT = Path(__file__).parents[1] / "image_components.py"


def components(*files: Path, kind: str = "pypi") -> list[dict]:
    command = [sys.executable, SCRIPT, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [component for component in found if component["purl"].startswith(f"pkg:{kind}/")]


def test_each_wheel_that_has_one_of_the_files_is_listed_once() -> None:
    libraries = Path(torch.__file__).parent / "lib"
    files = (libraries / "libc10.so", libraries / "libtorch_cpu.so", Path(numpy.__file__))
    found = components(*files)
    assert [component["name"] for component in found] == ["numpy", "torch"]
    version = torch.__version__.partition("+")[0]
    assert found[1]["purl"] == f"pkg:pypi/torch@{version}"


def test_files_outside_wheels_are_not_listed() -> None:
    assert components(SCRIPT) == []


def test_crates_of_the_tokenizers_are_listed() -> None:
    names = [component["name"] for component in components(kind="cargo")]
    assert {"onig", "serde", "tokenizers"} <= set(names)
    assert "braid_tokenizers" not in names
