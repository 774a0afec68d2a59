"""SIGTERM: new requests are rejected, running ones complete, exit code 0."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from e2e.support import http2, models
from e2e.support.inference import assert_close, expected
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.raw_trainer import RawTrainer
from e2e.support.server import Server

InferRequest = message("inference.ModelInferRequest")
# A second on the slow model, one row at a time: longer than the rest of a test.
X = np.random.default_rng(0).standard_normal((60, 256)).astype(np.float32)

# Longer on a busy machine.
PATIENT = ("--drain_timeout=50",)


def request_of(x: np.ndarray) -> InferRequest:
    request = InferRequest(model_name="slow")
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    return request


def wait_for_first_row(server: Server) -> None:
    wait_until(
        lambda: scrape(server.metrics_url).value("braid_batch_size_rows_count", model="slow") > 0
    )


def wait_until_not_ready(stub: Stub) -> None:
    """Waits until the server has handled the signal."""
    request = message("inference.ServerReadyRequest")()
    wait_until(lambda: not stub.ServerReady(request).ready)


def test_request_in_flight_completes(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("slow",), flags=PATIENT)
    with channel(server.address) as connection:
        stub = Stub(connection, "inference.GRPCInferenceService")
        in_flight = stub.ModelInfer.future(request_of(X))
        wait_for_first_row(server)
        server.terminate()
        wait_until_not_ready(stub)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request_of(X[:1]))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not in_flight.done(), "too fast: the request ended before SIGTERM"
        reply = in_flight.result()
    values = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(X.shape)
    assert_close(values, expected(models.make("slow"), X), rtol=1e-4, atol=1e-5)
    assert server.wait() == 0, server.log


def test_operation_in_flight_completes(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("slow",), flags=PATIENT)
    trainer = RawTrainer(server.address, "slow", {"name": "mse"}, {"sgd": {}})
    request = trainer.request("Step", {"x": X[:32]}, {"target": X[:32]})
    in_flight = trainer.stub.Step.future(request)
    labels = {"device": "cpu:0", "phase": "copy_in"}
    wait_until(
        lambda: scrape(server.metrics_url).value("braid_device_busy_seconds_total", **labels) > 0
    )
    server.terminate()
    assert in_flight.result().status.step == 1
    assert server.wait() == 0, server.log


@pytest.mark.parametrize("devices", ["cpu*1", "cpu*3"])
def test_idle_server_exits_immediately(start_server: Callable[..., Server], devices: str) -> None:
    server = start_server(devices, names=("chain",))
    # An open connection must not delay the exit.
    with channel(server.address) as connection:
        grpc.channel_ready_future(connection).result(timeout=CALL_SECONDS)
        started = time.monotonic()
        server.terminate()
        assert server.wait() == 0, server.log
    assert time.monotonic() - started < 5


@contextmanager
def reply_being_read(
    server: Server, x: np.ndarray
) -> Iterator[tuple[http2.StuckReader, grpc.Future]]:
    """The model returns `x`. The client has read one MiB of the reply and then stops."""
    request = InferRequest(model_name="identity_fp32")
    request.inputs.add(name="x", datatype="FP32", shape=[1, x.size])
    request.raw_input_contents.append(x.tobytes())
    reader = http2.StuckReader(server.address, reads=1 << 20)
    with channel(reader.address) as connection:
        reply = Stub(connection, "inference.GRPCInferenceService").ModelInfer.future(request)
        labels = {"method": "ModelInfer", "model": "identity_fp32", "code": "OK"}
        wait_until(
            lambda: scrape(server.metrics_url).value("braid_requests_total", **labels) == 1
        )
        yield reader, reply


def test_reply_in_transit_completes(start_server: Callable[..., Server]) -> None:
    """It takes longer than the grace period for calls without a reply."""
    server = start_server("cpu*1", names=("identity_fp32",), flags=PATIENT)
    x = np.arange(1 << 24, dtype=np.float32)
    with reply_being_read(server, x) as (reader, reply):
        server.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(timeout=3)
        reader.read_on()
        assert reply.result().raw_output_contents[0] == x.tobytes()
    assert server.wait() == 0, server.log


def test_unread_reply_does_not_delay_the_exit(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("cpu*1", names=("identity_fp32",), flags=("--drain_timeout=2",))
    with reply_being_read(server, np.zeros(1 << 24, np.float32)) as (reader, reply):
        started = time.monotonic()
        server.terminate()
        assert server.wait() == 0, server.log
        assert time.monotonic() - started < 10  # gRPC alone would wait for the kernel's 20 s.
        assert "dropping replies that clients do not read" in server.log
        reader.die()
        assert reply.exception().code() == grpc.StatusCode.UNAVAILABLE


def test_threads_of_other_libraries_do_not_take_the_signal(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """A profiler that is loaded before the server starts threads that do not block signals."""
    source, library = tmp_path / "early_thread.cc", tmp_path / "early_thread.so"
    source.write_text(
        "#include <pthread.h>\n"
        "#include <unistd.h>\n"
        "static void* Wait(void*) { for (;;) pause(); }\n"
        "__attribute__((constructor)) static void Start() {\n"
        "  pthread_t thread;\n"
        "  pthread_create(&thread, nullptr, Wait, nullptr);\n"
        "}\n"
    )
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True)
    server = start_server("cpu*1", ("mlp",), environment={"LD_PRELOAD": str(library)})
    server.terminate()
    assert server.wait() == 0, server.log
    assert "drained: no requests in flight" in server.log
