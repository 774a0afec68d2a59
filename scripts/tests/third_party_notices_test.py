from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = Path(__file__).parents[1] / "third_party_notices.py"
LIBRARY = Path("/usr/include/CLI/CLI.hpp")


def run(*files: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, SCRIPT, *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_packages_and_wheels_that_own_a_file_have_one_notice_each() -> None:
    header = Path(torch.__file__).parent / "include/ATen/ATen.h"
    done = run(LIBRARY, LIBRARY.with_name("App.hpp"), header)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    titles = [line for line in lines if line.startswith(("libcli11-dev ", "torch "))]
    version = torch.__version__.partition("+")[0]
    assert titles[1:] == [f"torch {version}"]
    assert titles[0].startswith("libcli11-dev ")
    assert "BSD-3-clause" in done.stdout
    assert "From PyTorch:" in done.stdout


def test_crates_of_the_tokenizers_have_a_notice() -> None:
    lines = run(LIBRARY).stdout.splitlines()
    assert "tokenizers 0.22.2" in lines
    assert "Oniguruma LICENSE" in lines


def test_a_file_without_an_owner_is_an_error() -> None:
    done = run(SCRIPT)
    assert done.returncode == 1
    assert f"{SCRIPT.resolve()}: no notice found" in done.stderr
