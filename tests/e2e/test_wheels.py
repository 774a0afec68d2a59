"""Installs the wheels of dist/ into a new virtual environment and uses them as a user would: the
commands and the packages alone, with no compiler, no checkout and no system library in reach."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.support import server
from e2e.support.server import ROOT, Server

DIST = ROOT / "dist"
INSTALL_SECONDS = 1500  # PyTorch with CUDA: 3 GB to download, 5 GB to write
RUN_SECONDS = 300

pytestmark = pytest.mark.skipif(
    len(list(DIST.glob("*.whl"))) != 2, reason="no wheels in dist/: run scripts/wheel.sh"
)

# Libraries that every system of the wheel's tag has; all others come from the environment.
SYSTEM_LIBRARIES = re.compile(r"(lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|z)|ld-linux-x86-64)\.so")

EXPORT = """
import braid
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
braid.export(net, {"input": torch.randn(8, 4)}, "models/mlp")
x = torch.randn(6, 4)
y = torch.arange(6) % 3
torch.save((x, y, net(x)), "expected.pt")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.nn.functional.cross_entropy(net(x), y).backward()
optimizer.step()
torch.save(net(x), "trained.pt")
"""

USE = """
import sys

import braid
import numpy as np
import torch

x, y, expected = torch.load("expected.pt")
with braid.connect(sys.argv[1]) as client:
    (output,) = client.infer("mlp", {"input": x}).values()
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    trainer = client.create_trainer(
        "mlp", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
    )
    trainer.step({"input": x}, {"target": y})
    assert trainer.publish("mlp") == 2
    (output,) = client.infer("mlp", {"input": x}).values()
    trained = torch.load("trained.pt").detach().numpy()
    np.testing.assert_allclose(output, trained, rtol=1e-5, atol=1e-6)
"""


def wheel(name: str) -> Path:
    (found,) = DIST.glob(f"{name}-*.whl")
    return found


class Environment:
    """A virtual environment outside the checkout. Its programs see no others on the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
        } | {"PATH": str(directory / "bin")}

    def run(self, *command: str, here: Path, seconds: int = RUN_SECONDS, **variables: str) -> str:
        program, *arguments = command
        done = subprocess.run(
            [self.directory / "bin" / program, *arguments],
            cwd=here,
            env=self.variables | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    directory = tmp_path_factory.mktemp("wheels") / "venv"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    environment = Environment(directory)
    install = ["python", "-m", "pip", "install", "--no-input", "--progress-bar=off"]
    wheels = [str(wheel("braid_server")), f"{wheel('braid_client')}[export]"]
    try:
        environment.run(*install, *wheels, here=directory.parent, seconds=INSTALL_SECONDS)
        yield environment
    finally:
        shutil.rmtree(directory)  # pytest would keep its 5 GB


def test_commands_export_serve_and_train(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shutil.which("cc", path=environment.variables["PATH"]) is None
    environment.run("python", "-c", EXPORT, here=tmp_path)
    monkeypatch.setattr(server, "BINARY", environment.directory / "bin/braid-server")
    for name in os.environ.keys() - environment.variables.keys():
        monkeypatch.delenv(name)
    variables = {"PATH": environment.variables["PATH"]}
    models, run = tmp_path / "models", tmp_path / "run"
    with Server(models, "cpu*2", run, ("--cpu_threads=1",), environment=variables) as running:
        environment.run("python", "-c", USE, running.address, here=tmp_path)
        assert "mlp" in environment.run("braid", "--server", running.address, "models", here=tmp_path)
        libraries = loaded_libraries(running.process.pid)
    outside = {path for path in libraries if not path.is_relative_to(environment.directory)}
    assert {path.name for path in libraries - outside} >= {"libtorch_cpu.so", "libc10.so"}
    assert [path for path in outside if not SYSTEM_LIBRARIES.match(path.name)] == []


def loaded_libraries(pid: int) -> set[Path]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {Path(path) for path in re.findall(r" (/\S+\.so[.\d]*)$", maps, re.M)}


def test_server_finds_torch_in_another_folder(
    environment: Environment, tmp_path: Path
) -> None:
    install = ["-m", "pip", "install", "--no-deps", f"--target={tmp_path}", wheel("braid_server")]
    environment.run("python", *map(str, install), here=tmp_path)
    start = "import braid_server; braid_server.main()"
    said = environment.run(
        "python", "-c", start, "--version", here=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert said == f"braid-server {wheel('braid_server').name.split('-')[1]}\n"


def test_cuda_plugin_finds_its_libraries(environment: Environment) -> None:
    (plugin,) = environment.directory.glob("lib/python3.*/site-packages/braid_server/lib/*.so")
    linked = subprocess.run(["ldd", plugin], capture_output=True, text=True, check=True).stdout
    # The driver is not among them: the server looks for it when it starts.
    assert "not found" not in linked
    for name in ("libtorch_cuda.so", "libcudart.so", "libnccl.so"):
        (path,) = re.findall(rf"{re.escape(name)}\S* => (\S+)", linked)
        assert Path(os.path.normpath(path)).is_relative_to(environment.directory)


def test_wrong_torch_version_reports_what_to_install(
    environment: Environment, tmp_path: Path
) -> None:
    other = tmp_path / "torch-2.0.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0.0\n")
    done = subprocess.run(
        [environment.directory / "bin/braid-server", "--version"],
        env=environment.variables | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    required = required_torch()
    assert f"error: torch: found version 2.0.0 (expected {required})" in done.stderr
    assert f"pip install torch=={required}" in done.stderr


def metadata(path: Path) -> tuple[dict[str, str], str]:
    """Returns the files of a wheel's dist-info, by their names there, and its METADATA."""
    with zipfile.ZipFile(path) as archive:
        files = {
            name.partition(".dist-info/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }
    return files, files["METADATA"]


def required_torch() -> str:
    _, text = metadata(wheel("braid_server"))
    (version,) = re.findall(r"^Requires-Dist: torch==(\S+)$", text, re.M)
    return version


def test_server_wheel_lists_its_requirements() -> None:
    path = wheel("braid_server")
    files, text = metadata(path)
    assert required_torch() in (ROOT / "scripts/lib.sh").read_text()
    glibc = "2." + re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", path.name)[1]
    assert f"glibc {glibc} or newer" in text
    assert "compute capability 7.5 (Turing) or newer" in text


def test_server_wheel_has_a_notice_for_each_library() -> None:
    files, _ = metadata(wheel("braid_server"))
    components = json.loads(files["sboms/auditwheel.cdx.json"])["components"]
    bundled = {component["name"] for component in components} - {"braid_server"}
    assert bundled
    lines = files["licenses/THIRD_PARTY_NOTICES.txt"].splitlines()
    assert bundled <= {line.partition(" ")[0] for line in lines}


@pytest.mark.parametrize("name", ["braid_server", "braid_client"])
def test_wheels_contain_the_license(name: str) -> None:
    files, text = metadata(wheel(name))
    assert files["licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "\nLicense-Expression: Apache-2.0\n" in text


def test_client_wheel_is_pure_python() -> None:
    assert wheel("braid_client").name.endswith("-py3-none-any.whl")
