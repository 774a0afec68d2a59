"""The log: text or JSON, levels per module, an optional line per call, and a profile of steps."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

import braid
import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models
from e2e.support.polling import wait_until
from e2e.support.server import Server, run_to_exit
from e2e.support.training import new_trainer
from torch import nn
from tritonclient.grpc import service_pb2, service_pb2_grpc

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HOSTILE_ID = 'a"b\nfake line\x1b[31m'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    models.export(folder / "linear", nn.Linear(3, 2), inputs=[torch.zeros(1, 3)])
    return folder


def infer(server: Server, name: str = "linear", rows: int = 5) -> None:
    """Sends a request in a trace whose id contains a line break."""
    tensor = triton.InferInput("input", [rows, 3], "FP32")
    tensor.set_data_from_numpy(np.zeros((rows, 3), np.float32))
    with triton.InferenceServerClient(server.address) as client:
        client.infer(
            name,
            [tensor],
            request_id=HOSTILE_ID,
            headers={"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"},
        )


def set_log_level(server: Server, level: str) -> str:
    """Returns the levels that are in effect afterwards."""
    with grpc.insecure_channel(server.address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.LogSettingsRequest()
        request.settings["log_level"].string_param = level
        return stub.LogSettings(request, timeout=30).settings["log_level"].string_param


def metrics_page(server: Server) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as page:
        return page.read().decode()


def json_lines(server: Server, select: Callable[[dict], bool]) -> list[dict]:
    return [line for line in map(json.loads, server.log.splitlines()) if select(line)]


def test_access_log_in_json(repository: Path, tmp_path: Path) -> None:
    flags = ("--log_format=json", "--log_level=access=info")
    with Server(repository, "cpu*2", tmp_path, flags) as server:
        infer(server)
        braid.connect(server.address).models()
        with pytest.raises(triton.InferenceServerException):
            infer(server, name="no\nsuch")

        def calls(method: str) -> list[dict]:
            return json_lines(
                server, lambda line: line["module"] == "access" and line["method"] == method
            )

        wait_until(lambda: len(calls("ModelInfer")) == 2)
        answered, refused = calls("ModelInfer")
        assert answered["code"] == "OK" and answered["model"] == "linear"
        assert answered["request_id"] == HOSTILE_ID and answered["trace_id"] == TRACE_ID
        assert answered["rows"] == 5 and answered["chunks"] >= 1
        assert answered["peer"].startswith("ipv4:127.0.0.1:")
        phases = answered["phase_seconds"]
        assert phases["queue"] >= 0 and phases["compute"] > 0
        assert phases["queue"] + phases["compute"] <= answered["duration_seconds"]
        assert refused["code"] == "NOT_FOUND" and "rows" not in refused
        # Failed calls are easy to search for.
        assert refused["request_id"] == HOSTILE_ID and refused["trace_id"] == TRACE_ID
        assert calls("RepositoryIndex")


def test_json_audit_describes_each_change(repository: Path, tmp_path: Path) -> None:
    with Server(repository, "cpu*1", tmp_path, ("--log_format=json",)) as server:
        client = braid.connect(server.address)
        optimizer = {"name": "SGD", "lr": 0.1}
        trainer = client.create_trainer("linear", loss="mse", optimizer=optimizer)
        batch = {"input": torch.zeros(2, 3)}, {"target": torch.zeros(2, 2)}
        trainer.step(*batch)
        saved = trainer.save_checkpoint().name
        trainer.restore_checkpoint()
        trainer.restore_checkpoint(saved)
        with pytest.raises(braid.NotFound):
            trainer.restore_checkpoint("nosuch")
        assert trainer.publish() == 2
        with trainer.stream() as stream:
            assert stream.publish().result(timeout=60) == 3
            stream.step(*batch)
        client.rollback("linear", 1)
        with pytest.raises(braid.NotFound):
            client.rollback("linear", 7)
        trainer.delete()
        set_log_level(server, "info")
        audited = json_lines(server, lambda line: line["module"] == "audit")
    common = {"time", "level", "module", "peer"}
    for line in audited:
        assert line["peer"].startswith("ipv4:127.0.0.1:")
        assert common <= line.keys() and "message" not in line
    told = [
        {name: line[name] for name in line.keys() - common}
        for line in audited
        if line["method"] != "Stream"  # Logged when the server has seen the end of the stream.
    ]
    ours = {"trainer": "linear"}
    assert told == [
        {"method": "CreateTrainer", "model": "linear", **ours, "outcome": "OK"},
        {"method": "SaveCheckpoint", **ours, "checkpoint": saved, "outcome": "OK"},
        {"method": "RestoreCheckpoint", **ours, "checkpoint": saved, "outcome": "OK"},
        {"method": "RestoreCheckpoint", **ours, "checkpoint": saved, "outcome": "OK"},
        {"method": "RestoreCheckpoint", **ours, "checkpoint": "nosuch", "outcome": "NOT_FOUND"},
        {"method": "Publish", **ours, "version": 2, "outcome": "OK"},
        {"method": "Publish", **ours, "version": 3, "outcome": "OK"},
        {"method": "Rollback", "model": "linear", "version": 1, "outcome": "OK"},
        {"method": "Rollback", "model": "linear", "version": 7, "outcome": "NOT_FOUND"},
        {"method": "DeleteTrainer", **ours, "outcome": "OK"},
        {"method": "LogSettings", "settings": "log_level=info", "outcome": "OK"},
    ]


def test_each_request_of_a_stream_is_logged(repository: Path, tmp_path: Path) -> None:
    flags = ("--log_format=json", "--log_level=access=info")
    with Server(repository, "cpu*1", tmp_path, flags) as server:
        replies: queue.SimpleQueue = queue.SimpleQueue()
        with triton.InferenceServerClient(server.address) as client:
            client.start_stream(lambda result, error: replies.put(error))
            for number, columns in enumerate((3, 4, 3)):
                tensor = triton.InferInput("input", [number + 1, columns], "FP32")
                tensor.set_data_from_numpy(np.zeros((number + 1, columns), np.float32))
                client.async_stream_infer("linear", [tensor], request_id=f"r{number}")
            assert [replies.get(timeout=60) is None for _ in range(3)] == [True, False, True]
            client.stop_stream()
    lines = json_lines(server, lambda line: line.get("method") == "ModelStreamInfer")
    assert [line["code"] for line in lines] == ["OK", "INVALID_ARGUMENT", "OK"]
    assert [line["request_id"] for line in lines] == ["r0", "r1", "r2"]
    assert [line.get("rows") for line in lines] == [1, None, 3]
    assert {line["model"] for line in lines} == {"linear"}


WAITS = """
max_batch_size: 64
dynamic_batching { max_queue_delay_microseconds: 60000000 }
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "output" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def request_named(request_id: str, rows: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="waits", id=request_id)
    request.inputs.add(name="input", datatype="FP32", shape=[rows, 3])
    request.raw_input_contents.append(bytes(rows * 3 * 4))
    return request


def test_failed_requests_are_logged_with_their_ids(tmp_path: Path) -> None:
    """A cancelled request, an expired request, a rejected request, and those of a stream whose client
    disconnects."""
    models.export(tmp_path / "models/waits", nn.Linear(3, 2), config=WAITS)
    flags = ("--log_format=json", "--log_level=access=info", "--max_requests=1")
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run", flags) as server:

        def ended() -> dict[str, dict]:
            lines = json_lines(server, lambda line: line["module"] == "access")
            return {line["request_id"]: line for line in lines}

        with grpc.insecure_channel(server.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            cancelled = stub.ModelInfer.future(request_named("cancelled", 2), timeout=60)
            wait_until(lambda: 'braid_queue_rows{model="waits"} 2' in metrics_page(server))
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request_named("refused", 3), timeout=60)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            cancelled.cancel()
            wait_until(lambda: "cancelled" in ended())
            with pytest.raises(grpc.RpcError) as late:
                stub.ModelInfer(request_named("late", 4), timeout=1)
            assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            wait_until(lambda: "late" in ended())
            requests: queue.SimpleQueue = queue.SimpleQueue()
            stream = stub.ModelStreamInfer(iter(requests.get, None), timeout=60)
            requests.put(request_named("streamed", 5))
            wait_until(lambda: 'braid_queue_rows{model="waits"} 5' in metrics_page(server))
            stream.cancel()
            requests.put(None)
            wait_until(lambda: "streamed" in ended())
    told = ended()
    # Its client cancels it at the deadline, which the server may see before its own timeout.
    assert told["late"]["code"] in ("DEADLINE_EXCEEDED", "CANCELLED")
    assert {name: (line["code"], line.get("rows")) for name, line in told.items()} == {
        "cancelled": ("CANCELLED", 2),
        "refused": ("RESOURCE_EXHAUSTED", None),
        "late": (told["late"]["code"], 4),
        "streamed": ("CANCELLED", 5),
    }
    assert not any("chunks" in line or "phase_seconds" in line for line in told.values())
    assert told["streamed"]["method"] == "ModelStreamInfer"


def test_text_access_log_can_be_turned_on_and_off(repository: Path, tmp_path: Path) -> None:
    with Server(repository, "cpu*1", tmp_path) as server:
        infer(server, rows=1)
        assert set_log_level(server, "access=info").endswith("training=info,devices=info,"
                                                             "storage=info,jobs=info,access=info")
        infer(server, rows=2)
        wait_until(lambda: "rows=2" in server.log)
        set_log_level(server, "access=off")
        infer(server, rows=3)
        with pytest.raises(grpc.RpcError) as caught:
            set_log_level(server, "loud")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "settings.log_level: unknown level 'loud'" in caught.value.details()
        with triton.InferenceServerClient(server.address) as client:
            # All modules except the access log.
            client.update_log_settings({"log_info": False})
            settings = client.get_log_settings().settings
        assert settings["log_level"].string_param.startswith("server=warning,rpc=warning")
        assert settings["log_level"].string_param.endswith("access=off")
    lines = [line for line in server.log.splitlines() if " access: ModelInfer " in line]
    assert len(lines) == 1
    assert 'request_id="a\\"b\\nfake line\\033[31m"' in lines[0] and "queue=" in lines[0]
    assert "fake line\x1b" not in server.log


def test_folder_with_non_utf8_name_is_ignored(repository: Path, tmp_path: Path) -> None:
    """Messages and metric labels must be UTF-8, so they cannot contain the name."""
    shutil.copytree(repository, tmp_path / "models")
    shutil.copytree(
        tmp_path / "models/linear", os.fsdecode(os.fsencode(tmp_path / "models") + b"/bad\xff")
    )
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run") as server:
        assert [model.name for model in braid.connect(server.address).models()] == ["linear"]
        assert "bad\\xff': folder skipped (its name is not UTF-8)" in server.log


def test_invalid_protobuf_requests_are_not_logged(
    repository: Path, tmp_path: Path
) -> None:
    with Server(repository, "cpu*1", tmp_path, ("--log_format=json",)) as server:
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError):
                call(b"\x0a\x02\xff\xff", timeout=30)
    for line in server.log.splitlines():
        json.loads(line)


def test_calls_after_the_drain_timeout_are_logged_or_lost(
    repository: Path, tmp_path: Path
) -> None:
    """The log ends while calls are still being answered; the exit code reports it."""
    flags = ("--log_level=access=info", "--drain_timeout=0.1")
    server = Server(repository, "cpu*1", tmp_path, flags).start()
    try:
        tensor = triton.InferInput("input", [20000, 3], "FP32")
        tensor.set_data_from_numpy(np.zeros((20000, 3), np.float32))
        with triton.InferenceServerClient(server.address) as client:
            for _ in range(300):
                client.async_infer("linear", [tensor], lambda result, error: None)
            server.terminate()
            assert server.wait() in (0, 1), server.log
    finally:
        server.kill()


def is_full(fifo: Path) -> bool:
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        return not select.select([], [writer], [], 0)[1]
    finally:
        os.close(writer)


def test_blocked_stdout_does_not_block_the_server(repository: Path, tmp_path: Path) -> None:
    flags = ("--log_format=json", "--log_level=access=info")
    server = Server(repository, "cpu*2", tmp_path, flags)

    def flood(lines: int) -> None:
        """Sends requests that are rejected in a stream; each is logged."""
        request = service_pb2.ModelInferRequest(model_name="nosuch")
        with grpc.insecure_channel(server.address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            replies = stub.ModelStreamInfer(iter([request] * lines), timeout=60)
            assert sum(1 for _ in replies) == lines

    os.mkfifo(server.log_path)
    reader = os.open(server.log_path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with server:
            flood(12_000)  # More than the pipe and the queue of 8,192 lines hold.
            assert is_full(server.log_path)
            for level in ("rpc=debug", "rpc=info"):
                set_log_level(server, level)  # Audited: waits until its line is written, or 1 s.
            read = b""

            def is_reported() -> bool:
                nonlocal read
                with contextlib.suppress(BlockingIOError):
                    read += os.read(reader, 1 << 20)
                return b"log: dropped " in read

            wait_until(is_reported)
            for line in read.splitlines()[:-1]:
                json.loads(line)
            flood(1_000)  # Lets the server exit without a reader.
    finally:
        os.close(reader)


def test_closed_stdout_does_not_stop_the_server(repository: Path, tmp_path: Path) -> None:
    server = Server(repository, "cpu*1", tmp_path, ("--log_level=access=info",))
    os.mkfifo(server.log_path)
    reader = os.open(server.log_path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        server.start()
        os.close(reader)
        for _ in range(3):
            infer(server)
            assert set_log_level(server, "access=info").endswith("access=info")
        server.terminate()
        assert server.wait() == 0
    finally:
        server.kill()


def test_invalid_log_levels_are_rejected(repository: Path) -> None:
    ended = run_to_exit(f"--model_repository={repository}", "--log_level=info,no=off")
    assert ended.returncode == 2
    assert "--log_level: unknown log module 'no' (expected server, rpc" in ended.stderr


def test_training_operations_have_phases_and_a_profile(repository: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    flags = ("--log_level=access=info", f"--profile={trace}", "--profile_steps=4")
    with Server(repository, "cpu*2", tmp_path / "run", flags) as server:
        client = braid.connect(server.address)
        with new_trainer(client, "linear", loss="mse", optimizer={"name": "SGD", "lr": 0.1}) as trainer:
            for _ in range(8):
                trainer.step({"input": torch.zeros(6, 3)}, {"target": torch.zeros(6, 2)})
        wait_until(lambda: "training operations written to" in server.log)
        wait_until(lambda: server.log.count(" access: Step OK ") == 8)
    assert " backward=" in server.log and " update=" in server.log
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    # Forward and backward of each replica, for exactly four operations.
    assert sum(name == "aten::linear" for name in names) == 8
    threads = {event["tid"] for event in events if event.get("name") == "aten::linear"}
    assert len(threads) == 2
