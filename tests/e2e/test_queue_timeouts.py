"""Requests that time out in the queue behind a busy worker."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support.inference import infer_input
from e2e.support.server import Server
from torch import Tensor, nn

CALL_SECONDS = 60
BUSY_SECONDS = 2.0
TIMEOUT_MICROSECONDS = 50_000

CONFIG = """
max_batch_size: 1
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
dynamic_batching { default_queue_policy { max_queue_size: 2 allow_timeout_override: true } }
"""

X = np.ones((1, 3), np.float32)


class Slow(nn.Module):
    def forward(self, x: Tensor, products: int = 0) -> Tensor:
        square = torch.full((300, 300), 1 / 300)
        for _ in range(products):
            square = square @ square
        return x * 2


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[triton.InferenceServerClient]:
    directory = tmp_path_factory.mktemp("timeouts")
    model = directory / "models/slow"
    (model / "1").mkdir(parents=True)
    torch.jit.script(Slow()).save(str(model / "1/model.pt"))
    (model / "config.pbtxt").write_text(CONFIG)
    server = Server(model.parent, "cpu*1", directory, ("--cpu_threads=1",))
    with server, triton.InferenceServerClient(server.address) as client:
        yield client


def products_of(client: triton.InferenceServerClient) -> int:
    """Returns the number of products that take BUSY_SECONDS."""
    start = time.monotonic()
    client.infer("slow", [infer_input("x", X)], parameters={"products": 200})
    return int(200 * BUSY_SECONDS / (time.monotonic() - start)) + 1


def test_expired_request_is_answered_and_frees_its_slot(
    client: triton.InferenceServerClient,
) -> None:
    answers: queue.Queue[tuple[str, float, object]] = queue.Queue()

    def send(name: str, timeout: int | None = None, products: int = 0) -> None:
        start = time.monotonic()
        client.async_infer(
            "slow",
            [infer_input("x", X)],
            lambda result, error: answers.put((name, time.monotonic() - start, error)),
            timeout=timeout,
            parameters={"products": products},
        )

    send("busy", products=products_of(client))
    time.sleep(BUSY_SECONDS / 10)
    send("expires", TIMEOUT_MICROSECONDS)
    send("expires", TIMEOUT_MICROSECONDS)
    for _ in range(2):
        name, seconds, error = answers.get(timeout=CALL_SECONDS)
        assert name == "expires"
        assert "expired in the queue" in str(error)
        assert seconds < BUSY_SECONDS / 2
    send("live")
    live = dict[str, object]()
    for _ in range(2):
        name, _, error = answers.get(timeout=CALL_SECONDS)
        live[name] = error
    assert live == {"busy": None, "live": None}
