"""AOTInductor packages compiled for the GPU, and a lost GPU."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import inference_packages, models
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server

from gpu.target import DEVICE, ON_CPU, ONE, gpu_only

# Compiled code for GPUs does not tell which integers are words.
RANGE = 'parameters { key: "range.INPUT__1" value { string_value: "0,19" } }'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("packages")
    packages = {"mixed": DEVICE} | ({} if ON_CPU else {"for_cpu": "cpu"})
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        compile_package = inference_packages.compile_mixed
        for made in [
            pool.submit(compile_package, directory / name / "1/model.pt2", device=device)
            for name, device in packages.items()
        ]:
            made.result()
    (directory / "mixed/config.pbtxt").write_text(inference_packages.MIXED_CONFIG + RANGE)
    return directory


@pytest.fixture(scope="module")
def client(
    repository: Path, devices: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[braid.Client]:
    with Server(repository, devices, tmp_path_factory.mktemp("run"), data=False) as server:
        with braid.connect(server.address) as client:
            yield client


@pytest.mark.parametrize("rows", [1, 2, 33, 333])
def test_any_batch_size_equals_pytorch(client: braid.Client, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 10)).astype(np.float32)
    words = np.random.default_rng(rows).integers(0, 20, rows)
    wanted = expected(inference_packages.mixed(), x, words)
    outputs = client.infer("mixed", {"INPUT__0": x, "INPUT__1": words})
    for name, value in wanted.items():
        assert_close(outputs[name], value, rtol=1e-4, atol=1e-4)


@gpu_only
def test_cpu_package_is_rejected(client: braid.Client) -> None:
    (status,) = [status for status in client.models() if status.name == "for_cpu"]
    assert "was compiled for cpu" in status.reason


@gpu_only
def test_undetected_index_error_makes_the_server_unhealthy(tmp_path: Path) -> None:
    models.export(
        tmp_path / "models/computed",
        models.make("waiting_words"),
        inputs=[torch.zeros(1, dtype=torch.int64)],
    )
    server = Server(tmp_path / "models", ONE, tmp_path / "run", data=False)
    try:
        with braid.connect(server.start().address, timeout=30) as client:
            assert client.is_ready()
            with pytest.raises(braid.Unavailable, match="cuda:0"):
                client.infer("computed", {"words": np.array([3, 1000])})
            assert not client.is_ready()
            with pytest.raises(braid.Unavailable, match="cuda:0"):
                client.infer("computed", {"words": np.array([3, 4])})
        assert "is lost" in server.log
        for path in ("/healthz", "/readyz"):
            with pytest.raises(urllib.error.HTTPError, match="503") as caught:
                urllib.request.urlopen(server.metrics_url.replace("/metrics", path), timeout=30)
            assert b"cuda:0 is lost" in caught.value.read()
    finally:
        server.kill()
