"""Faults that only a GPU shows: synchronized batch norm, out-of-memory errors, a lost GPU, several
kinds of work at once, and unusual settings of the CUDA runtime."""

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
from e2e.support import models, oracle, programs, training, training_models
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from e2e.support.training import MANY_STEPS, classes, rows
from torch import Tensor, nn

from gpu.target import DEVICE, ONE, TWO, gpu_only

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
CALL_SECONDS = 60
several_gpus = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs that this PyTorch can use"
)
SEVERAL = pytest.param("cuda", marks=several_gpus)


class Hungry(nn.Module):
    """Allocates 4 GiB per row and touches little of it."""

    def forward(self, x: Tensor) -> Tensor:
        memory = x.new_empty(x.shape[0], 1 << 30)[:, :1]
        return x + (memory != memory).to(x.dtype) * 0


HUNGRY_CONFIG = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


HUNGRY_PRODUCT_ROWS = 1 << 16
# The default max_batch_size would split the rows into batches that fit.
HUNGRY_PRODUCT_CONFIG = f"""
platform: "torch_aoti"
max_batch_size: {HUNGRY_PRODUCT_ROWS}
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ 16 ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
"""


class HungryProduct(nn.Module):
    """Allocates 4 MiB per row for a product, which compiled code does not fuse away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", torch.ones(16, 1 << 20))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.wide).amax(1, keepdim=True)


class WritesOutOfBounds(nn.Module):
    """Writes where its input says; the CUDA kernel does not check it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch._convert_indices_from_coo_to_csr(x, 4)


WRITES_CONFIG = """
input [ { name: "x" data_type: TYPE_INT64 dims: [ 2 ] } ]
output [ { name: "output__0" data_type: TYPE_INT64 dims: [ 5 ] } ]
"""


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


@pytest.mark.parametrize("format", ["torchscript", "pair"])
def test_synchronized_batch_norm_equals_whole_batch_training(
    tmp_path: Path, devices: str, format: str
) -> None:
    folder, module = tmp_path / "models/normed", training_models.make("normed")
    if format == "torchscript":
        models.export(folder, module, inputs=[torch.zeros(2, 6, dtype=torch.float64)])
    else:
        braid.export(module.to(DEVICE), {"x": rows(4, 6).to(DEVICE)}, folder, "pair")
    batches = [
        ({"x": 2 * rows(11, 6, seed=s) + s}, {"target": classes(11, of=4, seed=s)})
        for s in range(5)
    ]
    with Server(tmp_path / "models", devices, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            training.compare(
                client,
                "normed",
                batches,
                SGD,
                "cross_entropy",
                tolerance=MANY_STEPS,
                stages=None,
                sync_batch_norm=True,
            )


@pytest.mark.parametrize("format", ["torchscript", "exported"])
def test_batch_without_enough_memory_is_rejected(tmp_path: Path, format: str) -> None:
    folder = tmp_path / "models/hungry"
    if format == "torchscript":
        models.export(folder, Hungry())
    else:
        example = [torch.zeros(2, 1, device=DEVICE)]
        sizes = programs.any_batch(example)
        programs.save(folder / "1/model.pt2", Hungry().to(DEVICE), example, sizes)
    (folder / "config.pbtxt").write_text(HUNGRY_CONFIG)
    with Server(tmp_path / "models", ONE, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            with pytest.raises(braid.ResourceExhausted, match="memory"):
                client.infer("hungry", {"x": np.zeros((64, 1), np.float32)})
            assert client.is_ready()
            (output,) = client.infer("hungry", {"x": np.ones((1, 1), np.float32)}).values()
            assert output == 1


def test_batch_without_memory_for_compiled_code_is_rejected(tmp_path: Path) -> None:
    example = [torch.zeros(2, 16, device=DEVICE)]
    sizes = programs.any_batch(example, min=2, max=HUNGRY_PRODUCT_ROWS)
    folder = tmp_path / "models/hungry"
    programs.compile(folder / "1/model.pt2", HungryProduct().to(DEVICE), example, sizes)
    (folder / "config.pbtxt").write_text(HUNGRY_PRODUCT_CONFIG)
    with Server(tmp_path / "models", ONE, tmp_path / "run", data=False) as server:
        with braid.connect(server.address, timeout=CALL_SECONDS) as client:
            with pytest.raises(braid.ResourceExhausted, match="out of memory"):
                client.infer("hungry", {"input__0": np.zeros((HUNGRY_PRODUCT_ROWS, 16), np.float32)})
            assert client.is_ready()
            (output,) = client.infer("hungry", {"input__0": np.ones((2, 16), np.float32)}).values()
            assert (output == 16).all()


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


@gpu_only
def test_lost_gpu_does_not_abort_the_server(tmp_path: Path) -> None:
    """Requests in flight fail, too, and memory that the GPU was copying is freed."""
    example = [torch.zeros(1, dtype=torch.int64)]
    models.export(tmp_path / "models/words", models.make("waiting_words"), inputs=example)
    server = Server(tmp_path / "models", TWO, tmp_path / "run", data=False)
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:

            def ask(word: int) -> type | None:
                try:
                    client.infer("words", {"words": np.full(1000, word)})
                except braid.BraidError as error:
                    return type(error)
                return None

            assert ask(3) is None
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(ask, [3] * 20 + [1000] + [3] * 20))
            assert answers[20] is braid.Unavailable
            assert set(answers) <= {None, braid.Unavailable}
            assert ask(3) is braid.Unavailable
        server.terminate()
        # A signal's number is negative.
        assert server.wait() >= 0, server.log
        assert "is lost" in server.log
    finally:
        server.kill()


@gpu_only
def test_illegal_memory_access_makes_the_server_unhealthy(tmp_path: Path) -> None:
    """Not the error of the request that caused it: nothing runs on the GPU afterwards."""
    models.export(tmp_path / "models/writes", WritesOutOfBounds(), config=WRITES_CONFIG)
    server = Server(tmp_path / "models", ONE, tmp_path / "run", data=False)
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:
            (output,) = client.infer("writes", {"x": np.array([0, 1])}).values()
            assert output.tolist() == [0, 1, 2, 2, 2]
            with pytest.raises(braid.Unavailable, match="cuda:0"):
                client.infer("writes", {"x": np.full(2, 1 << 40)})
            assert not client.is_ready()
            with pytest.raises(braid.Unavailable, match="cuda:0"):
                client.infer("writes", {"x": np.array([0, 1])})
        server.terminate()
        assert server.wait() >= 0, server.log
    finally:
        server.kill()


@gpu_only
@pytest.mark.parametrize("devices", [ONE, SEVERAL])
def test_trainer_on_a_lost_gpu_is_rejected(tmp_path: Path, devices: str) -> None:
    """On several GPUs, its communicators cannot be created either."""
    example = [torch.zeros(1, dtype=torch.int64)]
    models.export(tmp_path / "models/words", models.make("waiting_words"), inputs=example)
    server = Server(tmp_path / "models", devices, tmp_path / "run")
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:
            with pytest.raises(braid.Unavailable):
                client.infer("words", {"words": np.full(64, 1000)})
            with pytest.raises(braid.Unavailable):
                client.create_trainer("words", loss="cross_entropy", optimizer=SGD)
            assert server.process.poll() is None, server.log
    finally:
        server.kill()


@several_gpus
def test_lost_gpu_fails_the_training_step_on_all_gpus(tmp_path: Path) -> None:
    """The last row's word does not exist, and only the last GPU sees it."""
    example = [torch.zeros(1, dtype=torch.int64)]
    models.export(tmp_path / "models/words", models.make("waiting_words"), inputs=example)
    server = Server(tmp_path / "models", "cuda:0,cuda:1", tmp_path / "run")
    try:
        with braid.connect(server.start().address, timeout=CALL_SECONDS) as client:
            trainer = client.create_trainer("words", loss="cross_entropy", optimizer=SGD)
            words, target = np.zeros(64, np.int64), np.zeros(64, np.int64)
            for _ in range(5):
                trainer.step({"words": words}, {"target": target})
            words[-1] = 1000
            with pytest.raises(braid.Unavailable, match="cuda:1"):
                trainer.step({"words": words}, {"target": target})
            assert not client.is_ready()
    finally:
        server.kill()


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


@gpu_only
def test_phases_include_kernel_time(tmp_path: Path, devices: str) -> None:
    """Kernels run long after they are launched: they count for the phase that launched them."""
    module = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(16)))
    models.export(tmp_path / "models/wide", module, inputs=[torch.zeros(1, 4096)])
    x = np.zeros((2048, 4096), np.float32)
    with Server(tmp_path / "models", devices, tmp_path / "run") as server:
        with braid.connect(server.address) as client:
            trainer = client.create_trainer("wide", loss="mse", optimizer=SGD)
            for _ in range(3):
                phases = trainer.step({"input": x}, {"target": x}).phases
    computing = phases["forward"] + phases["backward"]
    # Six products of 2048 rows for each weight take several times as long as copying 64 MiB.
    assert computing > 0.5 * sum(phases[name] for name in phases if name != "queue"), phases
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
