"""Tests of the container image: its contents, serving and shutdown."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import yaml
from e2e.support import inference_packages
from e2e.support.inference import assert_close, expected
from e2e.support.metrics import scrape
from e2e.support.server import ROOT

from container.conftest import Image
from container.running import Container

# Limit for the CPU image; the other one includes CUDA.
MOST_BYTES = {"cpu": 900e6, "cuda": 4.1e9}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of an AOTInductor model."""
    folder = tmp_path_factory.mktemp("compiled") / "mixed"
    inference_packages.compile_mixed(folder / "1/model.pt2")
    return folder


@pytest.fixture
def models(repository: Path, compiled: Path, tmp_path: Path) -> Path:
    """Returns a repository with a TorchScript and an AOTInductor model, readable for the server's
    user."""
    for folder in (repository / "mlp", compiled):
        subprocess.run(["cp", "-r", folder, tmp_path / folder.name], check=True)
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755)
    return tmp_path


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def container(
    image: Image, models: Path, ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    flags = (
        "--model_repository=/models",
        f"--grpc_port={ports[0]}",
        f"--metrics_port={ports[1]}",
        "--devices=cpu*2",
        "--cpu_threads=1",
    )
    log = tmp_path_factory.mktemp("container") / "log"
    with Container(image, models, *flags, log=log) as running:
        yield running


def test_serves_and_exits(container: Container, ports: tuple[int, int], models: Path) -> None:
    x = np.random.default_rng(7).random((100, 784), np.float32)
    with braid.connect(f"127.0.0.1:{ports[0]}") as client:
        client.wait_ready(timeout=60)
        logits = client.infer("mlp", {"x": x})["logits"]
        client.create_trainer(
            "mlp", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
        ).step({"x": x}, {"target": np.zeros(100, np.int64)})
    module = torch.jit.load(models / "mlp/1/model.pt")
    np.testing.assert_allclose(logits, module(torch.from_numpy(x)).detach(), rtol=1e-4, atol=1e-5)
    assert scrape(f"http://127.0.0.1:{ports[1]}/metrics").value(
        "braid_inference_samples_total", model="mlp"
    ) == len(x)
    assert container.stop() == 0, container.log


def test_serves_aotinductor_packages(container: Container, ports: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    x, words = random.random((33, 10), np.float32), random.integers(0, 20, 33)
    with braid.connect(f"127.0.0.1:{ports[0]}") as client:
        client.wait_ready(timeout=60)
        outputs = client.infer("mixed", {"input__0": x, "input__1": words})
    for name, value in expected(inference_packages.mixed(), x, words).items():
        assert_close(outputs[name], value, rtol=1e-4, atol=1e-5)


def test_runs_as_process_1_without_root(container: Container, ports: tuple[int, int]) -> None:
    with braid.connect(f"127.0.0.1:{ports[0]}") as client:
        client.wait_ready(timeout=60)
    status = (container.process / "status").read_text()
    assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
    assert re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE)
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
    # Uses the image's libraries instead of the machine's.
    maps = (container.process / "maps").read_text()
    assert "/opt/braid/lib/libtorch_cpu.so" in maps
    assert "site-packages" not in maps


def test_command_runs_in_the_container(
    container: Container, image: Image, ports: tuple[int, int]
) -> None:
    with braid.connect(f"127.0.0.1:{ports[0]}") as client:
        client.wait_ready(timeout=60)
    command = ["chroot", image.root, "/opt/braid/bin/braid", f"--server=127.0.0.1:{ports[0]}"]
    done = subprocess.run([*command, "models"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mlp" in done.stdout


def test_invalid_flag_exits_with_an_error(
    image: Image, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("container") / "log"
    flags = ("--model_repository=/models", "--devices=tpu")
    with Container(image, models, *flags, log=log) as running:
        assert running.wait() == 2
        assert "tpu" in running.log


def test_image_configuration(image: Image) -> None:
    assert image.config["Entrypoint"] == ["/opt/braid/bin/braid-server"]
    assert image.config["User"] == "10001:10001"
    assert set(image.config["ExposedPorts"]) == {"8001/tcp", "8002/tcp"}
    assert "Cmd" not in image.config
    assert "Healthcheck" not in image.config
    version = yaml.safe_load((ROOT / "deploy/helm/braid/Chart.yaml").read_text())["appVersion"]
    assert image.config["Labels"]["org.opencontainers.image.version"] == version


def test_user_owns_only_data_and_models(image: Image) -> None:
    owned = subprocess.run(
        ["find", image.root, "-xdev", "-user", "10001"], capture_output=True, text=True, check=True
    )
    data = {str(image.root / name) for name in ("data", "models")}
    assert set(owned.stdout.split()) == data


def test_all_libraries_are_found(image: Image) -> None:
    files = [
        image.root / "opt/braid/bin/braid-server",
        *image.root.glob("opt/braid/lib/*"),
        *image.root.glob("opt/braid/python/**/*.so"),
    ]
    inside = [f"/{file.relative_to(image.root)}" for file in files]
    done = subprocess.run(
        ["chroot", image.root, "ldd", *inside], capture_output=True, text=True, check=True
    )
    missing = set(re.findall(r"(\S+) => not found", done.stdout))
    # NVIDIA's runtime provides the driver's libraries.
    assert missing <= {"libcuda.so.1"}


def test_image_size(image: Image) -> None:
    size = subprocess.run(["du", "-sbx", image.root], capture_output=True, text=True, check=True)
    assert int(size.stdout.split()[0]) < MOST_BYTES[image.name.rpartition(":")[2]]


def test_sbom_lists_the_components(image: Image) -> None:
    sbom = json.loads((image.root / "opt/braid/sbom.cdx.json").read_text())
    assert sbom["metadata"]["component"]["name"] == "braid"
    purls = {component["purl"] for component in sbom["components"]}
    assert f"pkg:pypi/torch@{torch.__version__.partition('+')[0]}" in purls
    assert f"pkg:pypi/numpy@{np.__version__}" in purls
    status = (image.root / "var/lib/dpkg/status").read_text()
    packages = set(re.findall(r"^Package: (\S+)$", status, re.MULTILINE))
    assert {"libgrpc29", "libssl3"} <= packages
    assert {component["name"] for component in sbom["components"]} >= packages
