"""A server starts on the GPU, reports its state before anything has run there, and exits."""

from __future__ import annotations

import subprocess
import urllib.request
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models
from e2e.support.inference import assert_close, expected
from e2e.support.metrics import scrape
from e2e.support.server import BINARY, Server, run_to_exit

from gpu.target import DEVICE, gpu_only


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_all_libraries_are_found() -> None:
    """In particular the libraries of a bundle, on another machine than it was built on."""
    done = subprocess.run([str(BINARY), "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_metrics_before_the_first_tensor(empty: Path, devices: str, tmp_path: Path) -> None:
    with Server(empty, devices, tmp_path / "run") as server:
        for _ in range(3):
            metrics = scrape(server.metrics_url)
        slots = metrics.labels_of("braid_device_info")
        assert slots
        for slot in slots:
            assert slot["kind"] == DEVICE
            assert metrics.value("braid_device_healthy", device=slot["device"]) == 1
        for path in ("/healthz", "/readyz"):
            url = server.metrics_url.replace("/metrics", path)
            assert urllib.request.urlopen(url, timeout=30).status == 200
    assert "no GPU support" not in server.log, server.log


def test_metrics_after_the_first_request(empty: Path, devices: str, tmp_path: Path) -> None:
    models.export(empty / "chain64", models.make("chain64"), inputs=[torch.zeros(1, 10).double()])
    x = np.random.default_rng(0).standard_normal((5, 10))
    with Server(empty, devices, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            (output,) = client.infer("chain64", {"x": x}).values()
        metrics = scrape(server.metrics_url)
    assert metrics.value("braid_inference_samples_total", model="chain64") == 5
    assert_close(output, expected(models.make("chain64"), x), rtol=1e-9, atol=1e-9)


@gpu_only
@pytest.mark.parametrize("devices", ["cuda:99", "cuda:0,cuda:99"])
def test_missing_gpu_fails_the_start(empty: Path, devices: str) -> None:
    done = run_to_exit(f"--model_repository={empty}", f"--devices={devices}")
    assert done.returncode == 2
    assert "cuda:99" in done.stderr + done.stdout


@gpu_only
def test_hidden_gpus_fail_the_start(empty: Path, tmp_path: Path) -> None:
    server = Server(
        empty, "cuda", tmp_path / "run", data=False, environment={"CUDA_VISIBLE_DEVICES": ""}
    )
    with pytest.raises(RuntimeError, match="exit code 2") as caught:
        server.start()
    assert "cuda" in str(caught.value).lower()
