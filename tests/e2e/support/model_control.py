"""Loading and unloading models in a running server, and their reported states."""

from __future__ import annotations

import contextlib
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models
from e2e.support.inference import infer
from e2e.support.server import Server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import nn
from tritonclient.utils import InferenceServerException

CALL_SECONDS = 60

CONFIG = """
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
"""


class Times(nn.Module):
    """Multiplies x by a number. Has `extra` additional parameters."""

    def __init__(self, factor: float, extra: int = 0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((1,), float(factor)))
        if extra > 0:
            self.extra = nn.Parameter(torch.zeros(extra))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def write(
    repository: Path, name: str, version: int, factor: float, config: str | None = None
) -> None:
    """Writes a version that multiplies by `factor`. It appears atomically, because a poll may scan
    the repository at any time."""
    made = repository.parent / f"made-{name}-{version}"
    models.export(made, Times(factor), version=version)
    model = repository / name
    model.mkdir(parents=True, exist_ok=True)
    if not (model / "config.pbtxt").exists():
        (model / "config.pbtxt").write_text(config or CONFIG.format(rows=8))
    if (model / str(version)).exists():
        (made / str(version) / "model.pt").replace(model / str(version) / "model.pt")
    else:
        (made / str(version)).rename(model / str(version))
    shutil.rmtree(made)


def ask(
    client: triton.InferenceServerClient,
    name: str,
    version: str = "",
    seconds: float = CALL_SECONDS,
) -> float:
    """Returns the model's output for 1. seconds: the request's deadline."""
    x = np.ones((1, 4), np.float32)
    result = infer(client, name, {"x": x}, seconds=seconds, model_version=version)
    return float(result.as_numpy("y")[0, 0])


def index(client: triton.InferenceServerClient) -> list[tuple[str, str, str]]:
    return [(m.name, m.version, m.state) for m in client.get_model_repository_index().models]


def reasons(client: triton.InferenceServerClient) -> dict[tuple[str, str], str]:
    return {(m.name, m.version): m.reason for m in client.get_model_repository_index().models}


@contextlib.contextmanager
def refused(code: grpc.StatusCode, *words: str) -> Iterator[None]:
    with pytest.raises(InferenceServerException) as caught:
        yield
    assert caught.value.status() == str(code), caught.value
    for word in words:
        assert word in caught.value.message()


@contextlib.contextmanager
def load_on(
    server: Server, name: str, clients: int = 4, seconds: float = CALL_SECONDS
) -> Iterator[set[float]]:
    """Runs clients that keep sending requests to `name`, each with its own tritonclient. Yields the
    factors that they received. A request that fails or takes more than `seconds` fails the test."""
    answers: set[float] = set()
    failures: list[Exception] = []
    end = threading.Event()

    def run() -> None:
        with triton.InferenceServerClient(server.address) as client:
            while not end.is_set():
                try:
                    answers.add(ask(client, name, seconds=seconds))
                except InferenceServerException as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


class Running:
    """A running server with a model control mode, and a client."""

    def __init__(self, directory: Path, *flags: str, data: bool = False) -> None:
        self.repository = directory / "models"
        self.server = Server(
            self.repository, "cpu*2", directory / "run", ("--cpu_threads=1", *flags), data=data
        )

    def __enter__(self) -> Running:
        self.server.__enter__()
        self.client = triton.InferenceServerClient(self.server.address)
        return self

    def __exit__(self, *failure: object) -> None:
        self.client.close()
        self.server.__exit__(*failure)

    def healthy(self, name: str) -> bool | None:
        """Returns the health service's answer; None if the service does not know the name."""
        with grpc.insecure_channel(self.server.address) as channel:
            try:
                response = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=name), timeout=CALL_SECONDS
                )
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND
                return None
        return response.status == health_pb2.HealthCheckResponse.SERVING


def explicit(directory: Path, *flags: str, data: bool = False) -> Running:
    return Running(directory, "--model_control_mode=explicit", *flags, data=data)


def queued(running: Running, name: str) -> float:
    """Returns the number of queued rows, from the metrics."""
    with urllib.request.urlopen(running.server.metrics_url, timeout=CALL_SECONDS) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f'braid_queue_rows{{model="{name}"}}'):
                return float(line.split()[-1])
    return 0
