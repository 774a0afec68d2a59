"""Shutdown on one, two and three SIGTERMs: delay, drain, and what survives the drain timeout."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from e2e.support.durable import DurableServer
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.protocol import (
    CALL_SECONDS,
    Stub,
    channel,
    message,
    open_stream,
    operation,
    tensor,
)
from e2e.support.raw_trainer import RawTrainer
from e2e.support.server import Server

InferRequest = message("inference.ModelInferRequest")
# Half a minute on the slow model, longer than any test waits.
ENDLESS = np.zeros((6000, 256), np.float32)


def request_of(model: str, x: np.ndarray) -> InferRequest:
    request = InferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    request.raw_input_contents.append(x.tobytes())
    return request


def inference(server: Server) -> Stub:
    return Stub(channel(server.address), "inference.GRPCInferenceService")


def send_second_signal(server: Server, answer: str) -> None:
    """Sends another SIGTERM after the first one was handled, because pending signals are merged."""
    server.terminate()
    wait_until(lambda: answer in server.log)


def test_requests_are_accepted_during_the_drain_delay(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("mlp",), flags=("--drain_delay=3600",))
    stub = inference(server)
    server.terminate()
    ready = message("inference.ServerReadyRequest")()
    wait_until(lambda: not stub.ServerReady(ready).ready)
    for _ in range(10):
        stub.ModelInfer(request_of("mlp", np.zeros((1, 784), np.float32)))
    assert server.process.poll() is None
    started = time.monotonic()
    server.terminate()
    assert server.wait() == 0, server.log
    assert time.monotonic() - started < 10


# Has an idle connection and another with a long call. Exits when the server has closed both.
QUIET_CLIENT = """
import sys
import threading
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

address = sys.argv[1]
idle = grpc.insecure_channel(address)
grpc.channel_ready_future(idle).result()
left = threading.Event()
idle.subscribe(lambda state: state is not grpc.ChannelConnectivity.READY and left.set())
watching = health_pb2_grpc.HealthStub(grpc.insecure_channel(address))
watch = watching.Watch(health_pb2.HealthCheckRequest(service="readiness"))
left.clear()
next(watch)
print("ready", flush=True)
try:
    for _ in watch:
        pass
except grpc.RpcError as error:
    print(error.code().name)
assert left.wait(30)
"""


def test_clients_print_nothing_when_the_server_exits(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("mlp",))
    client = subprocess.Popen(
        [sys.executable, "-c", QUIET_CLIENT, server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
    )
    assert client.stdout is not None and client.stdout.readline() == "ready\n"
    server.terminate()
    assert server.wait() == 0, server.log
    printed, complained = client.communicate(timeout=CALL_SECONDS)
    assert (printed, complained, client.returncode) == ("UNAVAILABLE\n", "", 0)


def test_drain_delay_expires(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("mlp",), flags=("--drain_delay=1.5",))
    started = time.monotonic()
    server.terminate()
    assert server.wait() == 0, server.log
    assert 1.5 <= time.monotonic() - started < 10


def streams_of(server: Server, requests: queue.SimpleQueue) -> dict[str, Any]:
    """Opens a call of each client-streaming method. The client keeps it open. Each has had one
    reply or has no reply yet."""
    infer = request_of("mlp", np.zeros((1, 784), np.float32))
    trainer = RawTrainer(server.address, "chain", {"name": "mse"}, {"sgd": {}})
    step = {"x": np.ones((4, 10), np.float32)}, {"target": np.ones((4, 5), np.float32)}

    sent: queue.SimpleQueue = queue.SimpleQueue()

    def then_wait(request: Any) -> Iterator[Any]:
        yield request
        sent.put(None)
        requests.get()

    calls = {
        "ModelStreamInfer": inference(server).ModelStreamInfer(then_wait(infer)),
        "Stream": open_stream(
            server.address, then_wait(operation("Step", trainer.request("Step", *step)))
        ),
    }
    for call in calls.values():
        next(call)
        sent.get(timeout=CALL_SECONDS)
    evaluate = message("braid.v1.EvaluateRequest")(trainer=trainer.name)
    evaluate.inputs.append(tensor("x", step[0]["x"]))
    evaluate.targets.append(tensor("target", step[1]["target"]))
    calls["Evaluate"] = trainer.stub.Evaluate.future(then_wait(evaluate))
    sent.get(timeout=CALL_SECONDS)
    return calls


def test_open_streams_end_with_unavailable(start_server: Callable[..., Server]) -> None:
    """Clients can then continue on another server."""
    server = start_server("cpu*1", names=("mlp", "chain"), flags=("--log_level=access=info",))
    requests: queue.SimpleQueue = queue.SimpleQueue()
    calls = streams_of(server, requests)
    server.terminate()
    try:
        for method, call in calls.items():
            with pytest.raises(grpc.RpcError) as caught:
                call.result() if method == "Evaluate" else next(call)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE, (method, caught.value)
            assert "the server is shutting down" in caught.value.details(), method
    finally:
        for _ in calls:
            requests.put(None)
    assert server.wait() == 0, server.log
    for method in calls:
        assert f"{method} UNAVAILABLE" in server.log, method


@pytest.fixture
def durable(repository: Path, tmp_path: Path) -> Iterator[DurableServer]:
    """A server of the models slow and chain on one device; not started."""
    for name in ("slow", "chain"):
        shutil.copytree(repository / name, tmp_path / "models" / name)
    server = DurableServer(tmp_path / "models", "cpu*1", tmp_path / "run")
    yield server
    server.kill()


def start_work(server: DurableServer) -> tuple[str, grpc.Future]:
    """Starts the server, runs a training step that no checkpoint has, and starts a long inference
    call. Returns the trainer's name and the call."""
    server.start()
    trainer = RawTrainer(server.address, "chain", {"name": "mse"}, {"sgd": {}})
    step = {"x": np.ones((4, 10), np.float32)}, {"target": np.ones((4, 5), np.float32)}
    trainer.stub.Step(trainer.request("Step", *step))
    call = inference(server).ModelInfer.future(request_of("slow", ENDLESS))
    rows = "braid_batch_size_rows_count"
    wait_until(lambda: scrape(server.metrics_url).value(rows, model="slow") > 0)
    return trainer.name, call


def assert_only_call_lost(server: DurableServer, trainer: str, call: grpc.Future) -> None:
    """Checks that the call failed, the exit code reports it, and the trainer was saved."""
    assert server.wait() == 1, server.log
    assert call.exception().code() == grpc.StatusCode.UNAVAILABLE
    assert "drain timeout: 1 requests are still in flight" in server.log
    server.start()
    assert f"trainer '{trainer}': restored at step 1" in server.log


def test_drain_timeout_fails_running_calls_and_saves_trainers(
    durable: DurableServer,
) -> None:
    durable.replace_flag("--drain_timeout", "0.5")
    work = start_work(durable)
    durable.terminate()
    assert_only_call_lost(durable, *work)


def test_second_signal_shortens_the_drain_and_saves_trainers(durable: DurableServer) -> None:
    durable.replace_flag("--drain_timeout", "3600")
    work = start_work(durable)
    send_second_signal(durable, "draining: 1 requests in flight")
    assert not work[1].done()
    durable.terminate()
    assert_only_call_lost(durable, *work)


def test_third_signal_exits_immediately(durable: DurableServer) -> None:
    durable.replace_flag("--drain_delay", "3600")
    durable.replace_flag("--drain_timeout", "3600")
    _, call = start_work(durable)
    send_second_signal(durable, "not ready: accepting requests for another 1h")
    send_second_signal(durable, "waiting one more second")
    durable.terminate()
    assert durable.wait() == 1
    assert "exiting immediately" in durable.log
    assert call.exception().code() == grpc.StatusCode.UNAVAILABLE
