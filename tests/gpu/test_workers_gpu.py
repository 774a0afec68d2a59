"""Workers of a GPU: several kinds of work at once, unusual settings of the CUDA runtime, other GPUs
than a model was exported on, times of phases."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models, oracle, programs, training
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from torch import Tensor, nn

from gpu.target import TWO, gpu_only, several_gpus

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
CALL_SECONDS = 60
SEVERAL = pytest.param("cuda", marks=several_gpus)


class Made(nn.Module):
    """Uses a constant and tensors that it creates on the device of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(4, device=x.device, dtype=x.dtype)
        return self.linear(x) * torch.full((4,), 3.0, device=x.device) + steps


def small_repository(folder: Path) -> Path:
    for name, row in (("mlp64", (784,)), ("convnet64", (1, 28, 28)), ("chain64", (10,))):
        zeros = torch.zeros(1, *row, dtype=torch.float64)
        models.export(folder / name, models.make(name), inputs=[zeros])
    return folder


def train_convnet(client: braid.Client, steps: int) -> oracle.Run:
    batches = oracle.batches_of("convnet64", "cross_entropy", 32, steps)
    return training.train(client, "convnet64", batches, SGD, "cross_entropy")


def trained_by_pytorch(steps: int, replicas: int) -> oracle.Run:
    settings = tuple(SGD.items())
    return oracle.reference("convnet64", settings, "cross_entropy", 32, steps, replicas)


@functools.cache
def served() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and outputs of the model mlp64."""
    x = oracle.dataset("mlp64", 64)[0].numpy()
    return x, expected(models.make("mlp64"), x)


def assert_serves(client: braid.Client) -> None:
    x, wanted = served()
    (output,) = client.infer("mlp64", {"x": x}).values()
    assert_close(output, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("devices", [TWO, SEVERAL])
def test_concurrent_serving_training_and_loading(tmp_path: Path, devices: str) -> None:
    flags = ("--model_control_mode=explicit", "--load_model=mlp64", "--load_model=convnet64")
    repository = small_repository(tmp_path / "models")
    with Server(repository, devices, tmp_path / "run", flags) as server:
        with braid.connect(server.address, timeout=CALL_SECONDS) as client:
            replicas = len(client.devices())
            assert_serves(client)

            def serve() -> None:
                for _ in range(50):
                    assert_serves(client)

            def load() -> None:
                with triton.InferenceServerClient(server.address) as loader:
                    for _ in range(20):
                        loader.load_model("chain64")
                        loader.unload_model("chain64")

            with ThreadPoolExecutor() as pool:
                others = [pool.submit(each) for each in (serve, serve, load)]
                actual = train_convnet(client, steps=20)
                for other in others:
                    other.result()
            oracle.assert_equal_runs(actual, trained_by_pytorch(20, replicas), 1e-9)


@pytest.mark.parametrize(
    "environment",
    [{"CUDA_LAUNCH_BLOCKING": "1"}, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}],
    ids=lambda environment: next(iter(environment)),
)
def test_settings_of_the_cuda_runtime(tmp_path: Path, environment: dict[str, str]) -> None:
    repository = small_repository(tmp_path / "models")
    with Server(repository, TWO, tmp_path / "run", environment=environment) as server:
        with braid.connect(server.address) as client:
            assert_serves(client)
            actual = train_convnet(client, steps=5)
    oracle.assert_equal_runs(actual, trained_by_pytorch(5, 2), 1e-9)


@several_gpus
@pytest.mark.parametrize("home", ["cuda:0", "cuda:1"])
def test_programs_run_on_other_gpus_than_they_were_exported_on(tmp_path: Path, home: str) -> None:
    x = torch.randn(2, 6, device=home)
    module = Made().to(home)
    sizes = programs.any_batch([x])
    programs.save(tmp_path / "models/program/1/model.pt2", module, [x], sizes)
    braid.export(module, {"x": x}, tmp_path / "models/pair", "pair", precisions=())
    batch = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
    for devices in ("cuda:0", "cuda:1", "cuda:0,cuda:1"):
        with Server(tmp_path / "models", devices, tmp_path / devices, data=False) as server:
            with braid.connect(server.address) as client:
                for name in ("program", "pair"):
                    (output,) = client.infer(name, {"x": batch}).values()
                    assert_close(output, expected(module.cpu(), batch), rtol=1e-4, atol=1e-4)


def busy_seconds(phases: dict[str, float]) -> float:
    return sum(seconds for name, seconds in phases.items() if name != "queue")


@gpu_only
def test_phases_include_kernel_time(tmp_path: Path, devices: str) -> None:
    """Kernels run long after they are launched: they count for the phase that launched them."""
    module = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8)))
    models.export(tmp_path / "models/wide", module, inputs=[torch.zeros(1, 4096)])
    x = np.zeros((2048, 4096), np.float32)
    with Server(tmp_path / "models", devices, tmp_path / "run", data=False) as server:
        with braid.connect(server.address) as client:
            trainer = client.create_trainer("wide", loss="mse", optimizer=SGD)
            steps = [trainer.step({"input": x}, {"target": x}).phases for _ in range(8)]
    # Other tests use the GPU at the same time, so the fastest step counts.
    phases = min(steps, key=busy_seconds)
    # Six products of 2048 rows for each weight take several times as long as copying 64 MiB.
    assert phases["forward"] + phases["backward"] > 0.5 * busy_seconds(phases), phases
    assert phases["backward"] > phases["forward"], phases


@gpu_only
def test_more_workers_of_a_gpu_do_not_start_more_openmp_threads(tmp_path: Path) -> None:
    repository = small_repository(tmp_path / "models")

    def threads(workers: int) -> int:
        folder = tmp_path / f"run{workers}"
        with Server(repository, f"cuda:0*{workers}", folder, data=False) as server:
            with braid.connect(server.address) as client:
                for _ in range(10):
                    assert_serves(client)
            return len(os.listdir(f"/proc/{server.process.pid}/task"))

    # A worker has a thread, and CUDA may start one or two for it.
    assert threads(8) - threads(1) <= 3 * 7
