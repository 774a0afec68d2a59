"""Many clients, stalled clients and killed clients: the server keeps serving and frees their
resources."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from e2e.support import http2, models
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import ROOT, Server
from torch import Tensor, nn

InferRequest = message("inference.ModelInferRequest")
SERVICE = "inference.GRPCInferenceService"
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
MIB = 1 << 20

# Duration on the slow model, about 5 ms per row and one row at a time: longer than any test waits
# for the slot of a cancelled request.
ENDLESS_ROWS = 20_000
INFER_WITHOUT_END = "Stub(connection, SERVICE).ModelInfer(slow_request(ENDLESS_ROWS))"
# Prints a line when the first of its four requests is answered.
STREAM_WITHOUT_END = """
def requests():
    yield slow_request()
    for _ in range(4):
        yield slow_request(ENDLESS_ROWS)
    threading.Event().wait()
replies = connection.stream_stream(
    f"/{SERVICE}/ModelStreamInfer",
    request_serializer=InferRequest.SerializeToString,
    response_deserializer=message("inference.ModelStreamInferResponse").FromString,
)(requests())
print(next(replies).error_message, flush=True)
threading.Event().wait()
"""
# For releasing a slot on a busy machine: the current chunk is finished first.
RELEASE_SECONDS = 10


def request_of(model: str, x: np.ndarray) -> InferRequest:
    request = InferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    return request


def slow_request(rows: int = 1) -> InferRequest:
    return request_of("slow", np.zeros((rows, 256), np.float32))


def wait_served(address: str, request: InferRequest, seconds: float = RELEASE_SECONDS) -> None:
    """On a server with one slot for requests, waits until it is free."""
    with channel(address) as connection:
        stub = Stub(connection, SERVICE)

        def served() -> bool:
            try:
                stub.ModelInfer(request)
            except grpc.RpcError as error:
                assert error.code() == RESOURCE_EXHAUSTED, error
                return False
            return True

        wait_until(served, seconds)


def wait_for_metric(server: Server, name: str, least: float, **labels: str) -> None:
    wait_until(lambda: scrape(server.metrics_url).value(name, **labels) >= least)


def assert_drains_empty(server: Server) -> None:
    """Checks that nothing is in flight and that the server exits at once with code 0."""
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < RELEASE_SECONDS
    assert "draining: 0 requests in flight" in server.log


class Client:
    """A process that runs `code` with this module's names and a `connection`."""

    def __init__(self, address: str, code: str) -> None:
        program = (
            "from e2e.test_inference_robustness import *\n"
            f"connection = channel({address!r})\n{code}"
        )
        paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "client/python")])
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
        )

    def await_line(self) -> None:
        assert self._process.stdout.readline(), "the client has ended"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def one_place(start_server: Callable[..., Server]) -> Server:
    """A server that accepts one request in flight, so that a leaked slot is detected.

    Its malloc has one arena. With the default, each thread that received a large request would keep
    up to 64 MiB of freed memory, which looks like a leak.
    """
    return start_server(
        "cpu*1",
        names=("slow", "identity_fp32"),
        flags=("--max_requests=1",),
        environment={"MALLOC_ARENA_MAX": "1"},
    )


def test_client_killed_while_sending_frees_its_slot(one_place: Server) -> None:
    x = request_of("identity_fp32", np.zeros((1, 64 * 1024), np.float32)).SerializeToString()
    for _ in range(50):
        connection = http2.connect(one_place.address)
        connection.sendall(
            http2.begin_call(f"/{SERVICE}/ModelInfer", len(x)) + http2.data(x[: 16 * 1024])
        )
        connection.close()
    wait_served(one_place.address, slow_request())
    assert_drains_empty(one_place)


def test_client_killed_during_its_request_frees_its_slot(one_place: Server) -> None:
    client = Client(one_place.address, INFER_WITHOUT_END)
    try:
        # One row is a batch, so the request is running.
        wait_for_metric(one_place, "braid_batch_size_rows_count", 1, model="slow")
    finally:
        client.kill()
    wait_served(one_place.address, slow_request())
    assert_drains_empty(one_place)


def test_client_killed_in_a_stream_frees_its_slots(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("slow",), flags=("--max_requests=4",))
    client = Client(server.address, STREAM_WITHOUT_END)
    try:
        client.await_line()
    finally:
        client.kill()
    # All four slots, at once.
    deadline = time.monotonic() + RELEASE_SECONDS
    with channel(server.address) as connection:
        stub = Stub(connection, SERVICE)
        while True:
            futures = [stub.ModelInfer.future(slow_request(5)) for _ in range(4)]
            if all(future.exception() is None for future in futures):
                break
            assert time.monotonic() < deadline, "places of a client that is gone are taken"
    assert_drains_empty(server)


def test_client_killed_while_receiving_frees_its_slot(one_place: Server) -> None:
    """The reply has 64 MiB, of which the client reads one."""
    request = request_of("identity_fp32", np.zeros((1, 16 * MIB), np.float32))
    wait_served(one_place.address, request)
    before = one_place.resident_bytes()
    for replies in range(2, 7):
        reader = http2.StuckReader(one_place.address, reads=MIB)
        with channel(reader.address) as connection:
            reply = Stub(connection, SERVICE).ModelInfer.future(request)
            # The reply is computed even if it is not read.
            labels = {"method": "ModelInfer", "model": "identity_fp32", "code": "OK"}
            wait_for_metric(one_place, "braid_requests_total", replies, **labels)
            assert not reply.done(), "too fast: the reply was read"
            reader.die()
            assert reply.exception().code() == grpc.StatusCode.UNAVAILABLE
    wait_served(one_place.address, slow_request())
    # malloc keeps the memory of about one reply for the next ones. Five that leak take 320 MiB.
    wait_until(lambda: one_place.resident_bytes() - before < 128 * MIB, RELEASE_SECONDS)
    assert_drains_empty(one_place)


def test_overload_is_rejected_immediately(start_server: Callable[..., Server]) -> None:
    places = 4
    server = start_server("cpu*1", names=("slow",), flags=(f"--max_requests={places}",))
    ended: list[grpc.StatusCode] = []
    with channel(server.address) as connection:
        stub = Stub(connection, SERVICE)
        futures = []
        for _ in range(10 * places):
            future = stub.ModelInfer.future(slow_request(200))
            future.add_done_callback(lambda done: ended.append(done.code()))
            futures.append(future)
        for future in futures:
            error = future.exception()
            assert error is None or "--max_requests" in error.details()
        wait_until(lambda: len(ended) == len(futures))
        assert ended.count(grpc.StatusCode.OK) == places
        # The rejected requests did not wait for the running ones.
        assert set(ended[:-places]) == {RESOURCE_EXHAUSTED}


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


@pytest.fixture
def many_files() -> Iterator[int]:
    """Raises the limit of open files of this process and its servers to the system's maximum."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_ten_thousand_idle_connections(
    many_files: int, start_server: Callable[..., Server], record_property: Callable
) -> None:
    count = min(10_000, many_files - 1000)
    record_property("connections", count)
    server = start_server("cpu*2", names=("mlp",))
    request = request_of("mlp", np.zeros((1, 784), np.float32))
    with channel(server.address) as connection:
        stub = Stub(connection, SERVICE)
        stub.ModelInfer(request)
        files, memory = open_files(server), server.resident_bytes()
        idle = []
        try:
            for _ in range(count):
                idle.append(http2.connect(server.address))
            wait_until(lambda: open_files(server) >= files + count)
            start = time.monotonic()
            for _ in range(100):
                stub.ModelInfer(request)
            assert time.monotonic() - start < CALL_SECONDS / 4
            grown = server.resident_bytes() - memory
            assert grown < count * 64 * 1024, f"{grown // count} bytes a connection"
        finally:
            for each in idle:
                each.close()
        wait_until(lambda: open_files(server) <= files)
        stub.ModelInfer(request)
    assert_drains_empty(server)


# Takes 20 s: the server's handshake timeout.
def test_connections_without_handshake_are_closed(start_server: Callable[..., Server]) -> None:
    """The server closes connections with an incomplete preface or frame."""
    server = start_server("cpu*1", names=("mlp",))
    request = request_of("mlp", np.zeros((1, 784), np.float32))
    with channel(server.address) as connection:
        stub = Stub(connection, SERVICE)
        stub.ModelInfer(request)
        files = open_files(server)
        greetings = (b"", http2.PREFACE[:10], http2.PREFACE, http2.GREETING[:-3])
        stalled = [http2.connect(server.address, greetings[i % 4]) for i in range(400)]
        try:
            wait_until(lambda: open_files(server) >= files + len(stalled))
            stub.ModelInfer(request)
            wait_until(lambda: open_files(server) <= files)
            stub.ModelInfer(request)
        finally:
            for each in stalled:
                each.close()
    assert_drains_empty(server)


class Plodding(nn.Module):
    """Takes as long for 1 row as for 1,000: many small operations."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8000):
            x = x.tanh()
        return x


@pytest.fixture
def plodding(tmp_path: Path) -> Iterator[Server]:
    config = """
max_batch_size: 1000
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
    models.export(tmp_path / "models/plodding", Plodding(), config=config)
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run", ("--cpu_threads=1",), False) as server:
        yield server


@pytest.mark.serial
def test_large_request_does_not_block_a_small_request(plodding: Server) -> None:
    """A request of one row waits for the current chunk, not for the other 99."""
    ended: list[float] = []
    beside = []
    with channel(plodding.address) as connection:
        stub = Stub(connection, SERVICE)
        stub.ModelInfer(request_of("plodding", np.zeros((1000, 1), np.float32)))
        small = request_of("plodding", np.zeros((1, 1), np.float32))
        start = time.monotonic()
        large = stub.ModelInfer.future(request_of("plodding", np.zeros((100_000, 1), np.float32)))
        large.add_done_callback(lambda _: ended.append(time.monotonic()))
        wait_for_metric(plodding, "braid_batch_size_rows_count", 3, model="plodding")
        while not ended:
            sent = time.monotonic()
            stub.ModelInfer(small)
            beside.append(time.monotonic() - sent)
        large.result()
    chunk = (ended[0] - start) / 100
    # It waits for one chunk and may be merged into the next. The rest is noise.
    assert len(beside) > 20, "the large request was over before the small ones"
    assert statistics.median(beside) < 5 * chunk, (beside, chunk)
    assert max(beside) < 20 * chunk, (beside, chunk)


@pytest.mark.serial
def test_memory_does_not_grow_with_requests(start_server: Callable[..., Server]) -> None:
    """bench/inference/inference.sh runs a longer version with a million requests."""
    server = start_server("cpu*2", names=("mlp",))
    request = request_of("mlp", np.zeros((1, 784), np.float32))
    with channel(server.address) as connection:
        stub = Stub(connection, SERVICE)

        def send(count: int) -> None:
            places = threading.Semaphore(32)
            for _ in range(count):
                places.acquire()
                stub.ModelInfer.future(request).add_done_callback(lambda _: places.release())
            for _ in range(32):
                assert places.acquire(timeout=CALL_SECONDS)

        # Before that, oneDNN generates code for most batch sizes of up to 32 merged requests.
        send(10_000)
        before = server.resident_bytes()
        send(20_000)
        assert server.resident_bytes() < 1.05 * before
