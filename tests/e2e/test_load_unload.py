"""Models come and go while the server runs: on request, and when the repository changes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e import models
from e2e.inference import infer
from e2e.server import Server, run_to_exit
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import nn
from tritonclient.utils import InferenceServerException

CALL_SECONDS = 60
POLL_SECONDS = 0.2

CONFIG = """
max_batch_size: {rows}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] }} ]
"""


class Times(nn.Module):
    """x times a number, with `extra` parameters more."""

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
    """A version that multiplies by `factor`. It is there at once, for a poll may look any time."""
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


def ask(client: triton.InferenceServerClient, name: str, version: str = "") -> float:
    """What the model makes of 1."""
    result = infer(client, name, {"x": np.ones((1, 4), np.float32)}, model_version=version)
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


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CALL_SECONDS
    while not what():
        assert time.monotonic() < deadline, "it never comes"
        time.sleep(0.02)


@contextlib.contextmanager
def load_on(server: Server, name: str, clients: int = 4) -> Iterator[set[float]]:
    """Clients that ask `name` all the while, each with a stock client of its own; the factors that
    came back. A request that fails fails the test."""
    answers: set[float] = set()
    failures: list[Exception] = []
    end = threading.Event()

    def run() -> None:
        with triton.InferenceServerClient(server.address) as client:
            while not end.is_set():
                try:
                    answers.add(ask(client, name))
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
    """A server in a mode, with a client."""

    def __init__(self, directory: Path, *flags: str, data: bool = False) -> None:
        self.repository = directory / "models"
        self.server = Server(
            self.repository, "cpu*2", directory / "run", ("--cpu_threads=1", *flags), data=data
        )

    def __enter__(self) -> Running:
        self.server.start()
        self.client = triton.InferenceServerClient(self.server.address)
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.client.close()
            self.server.stop()
        finally:
            self.server.kill()

    def healthy(self, name: str) -> bool | None:
        """What the health service says; None: it does not know the name."""
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


def test_models_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    write(tmp_path / "models", "b", 1, 3)
    with explicit(tmp_path, "--load_model=a") as running:
        client = running.client
        assert index(client) == [("a", "1", "READY"), ("b", "", "")]
        assert client.is_model_ready("a")
        assert not client.is_model_ready("b")
        with refused(grpc.StatusCode.NOT_FOUND, "'b'", "not been loaded"):
            ask(client, "b")
        client.load_model("b")
        assert ask(client, "b") == 3
        assert running.healthy("b")
        client.unload_model("b")
        assert index(client) == [("a", "1", "READY"), ("b", "1", "UNAVAILABLE")]
        assert reasons(client)["b", "1"] == "unloaded"
        assert running.healthy("b") is False
        assert not client.is_model_ready("b")
        with refused(grpc.StatusCode.NOT_FOUND, "'b'", "unloaded"):
            ask(client, "b")
        client.load_model("b")
        assert ask(client, "b") == 3
        assert running.healthy("b")
        assert client.is_server_ready()


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    write(tmp_path / "models", "broken", 1, 2, config="sequence_batching { }")
    with explicit(tmp_path, "--load_model=*") as running:
        client = running.client
        assert index(client) == [("a", "1", "READY"), ("broken", "1", "UNAVAILABLE")]
        with refused(grpc.StatusCode.UNIMPLEMENTED, "sequence_batching"):
            client.load_model("broken")
        with refused(grpc.StatusCode.NOT_FOUND, "'c'"):
            client.load_model("c")
        with refused(grpc.StatusCode.NOT_FOUND, "'c'"):
            client.unload_model("c")
        for name in ("../models/a", str(tmp_path / "models/a"), "a/1", "..", "a\0b", ""):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "model_name"):
                client.load_model(name)
            with refused(grpc.StatusCode.NOT_FOUND):
                client.get_model_config(name)
        with refused(grpc.StatusCode.UNIMPLEMENTED, "file:1/model.pt"):
            client.load_model("a", config="{}", files={"file:1/model.pt": b"x"})
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "config", "JSON"):
            client.load_model("a", config="{")
        assert ask(client, "a") == 2


def test_a_configuration_may_come_with_the_request(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    with explicit(tmp_path) as running:
        client = running.client
        client.load_model("a")
        config = client.get_model_config("a", as_json=True)["config"]
        assert config["max_batch_size"] == 8
        config["max_batch_size"] = 3
        client.load_model("a", config=json.dumps(config))
        assert client.get_model_config("a").config.max_batch_size == 3
        assert ask(client, "a") == 2
        client.load_model("a")
        assert client.get_model_config("a").config.max_batch_size == 8


def test_other_modes_refuse_loads(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    for mode in ("none", "poll"):
        with Running(tmp_path, f"--model_control_mode={mode}") as running:
            with refused(grpc.StatusCode.UNAVAILABLE, "not allowed", "--model_control_mode"):
                running.client.load_model("a")
            with refused(grpc.StatusCode.UNAVAILABLE, "not allowed"):
                running.client.unload_model("a")
            assert ask(running.client, "a") == 2
        shutil.rmtree(tmp_path / "run")


def test_a_model_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    done = run_to_exit(
        f"--model_repository={tmp_path / 'models'}",
        "--devices=cpu*1",
        "--grpc_port=0",
        "--metrics_port=0",
        "--model_control_mode=explicit",
        "--load_model=nowhere",
    )
    assert done.returncode == 2
    assert "--load_model" in done.stderr
    assert "nowhere" in done.stderr


def test_a_reload_fails_no_request(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 1)
    with explicit(tmp_path, "--load_model=a") as running:
        with load_on(running.server, "a") as answers:
            for factor in range(2, 22):
                write(tmp_path / "models", "a", 1, factor)
                running.client.load_model("a")
                assert ask(running.client, "a") == factor
        assert answers <= {float(factor) for factor in range(1, 22)}
        assert len(answers) > 10


def test_several_clients_may_load_and_unload_one_model(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    with explicit(tmp_path) as running:

        def run() -> None:
            with triton.InferenceServerClient(running.server.address) as client:
                for _ in range(5):
                    client.load_model("a")
                    client.unload_model("a")

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        running.client.load_model("a")
        assert ask(running.client, "a") == 2


def test_an_unload_answers_what_waits(tmp_path: Path) -> None:
    delay = "dynamic_batching { max_queue_delay_microseconds: 1000000 }"
    write(tmp_path / "models", "a", 1, 2, config=CONFIG.format(rows=64) + delay)
    with explicit(tmp_path, "--load_model=a") as running:
        done: list[object] = []
        arrived = threading.Event()

        def answer(result: object, error: object) -> None:
            done.append(error if error is not None else result.as_numpy("y")[0, 0])
            arrived.set()

        tensor = triton.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        running.client.async_infer("a", [tensor], answer)
        wait_until(lambda: arrived.is_set() or queued(running, "a") > 0)
        running.client.unload_model("a")
        assert arrived.wait(CALL_SECONDS)
        assert done == [2]


def queued(running: Running, name: str) -> float:
    """Rows that wait, as the metrics say."""
    with urllib.request.urlopen(running.server.metrics_url, timeout=CALL_SECONDS) as page:
        for line in page.read().decode().splitlines():
            if line.startswith(f'braid_queue_rows{{model="{name}"}}'):
                return float(line.split()[-1])
    return 0


def test_a_hundred_cycles_leave_no_memory(tmp_path: Path) -> None:
    """Of a model of 8 MB, whose replicas alone would make 1.6 GB."""
    models.export(tmp_path / "models/a", Times(2, extra=2 << 20), config=CONFIG.format(rows=8))
    with explicit(tmp_path) as running:

        def cycle() -> None:
            running.client.load_model("a")
            assert ask(running.client, "a") == 2
            running.client.unload_model("a")

        for _ in range(5):
            cycle()
        before = running.server.resident_bytes()
        for _ in range(100):
            cycle()
        assert running.server.resident_bytes() - before <= 50 << 20


def test_a_trainer_outlives_its_model(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    with explicit(tmp_path, "--load_model=a", data=True) as running:
        x = np.ones((8, 4), np.float32)
        with braid.connect(running.server.address) as client:
            trainer = client.create_trainer("a", loss="mse", optimizer={"name": "SGD", "lr": 0.1})
            trainer.step({"x": x}, {"target": 3 * x})
            running.client.unload_model("a")
            assert trainer.step({"x": x}, {"target": 3 * x}).step == 2
            with pytest.raises(braid.BraidError, match="unloaded"):
                trainer.publish("a")
            running.client.load_model("a")
            assert trainer.publish("a") == 2
            published = ask(running.client, "a")
            assert published != 2
            # What a trainer published is newer than what the repository holds.
            running.client.load_model("a")
            assert ask(running.client, "a") == published
            running.client.unload_model("a")
            running.client.load_model("a")
            assert ask(running.client, "a") == published


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", ["3"]),
        ("version_policy { latest { num_versions: 2 } }", ["2", "3"]),
        ("version_policy { all { } }", ["1", "2", "3"]),
        ("version_policy { specific { versions: [ 1, 2 ] } }", ["1", "2"]),
    ],
    ids=["default", "latest", "all", "specific"],
)
def test_the_policy_says_which_versions_are_served(
    tmp_path: Path, policy: str, versions: list[str]
) -> None:
    for version in (1, 2, 3):
        write(tmp_path / "models", "a", version, version, config=CONFIG.format(rows=8) + policy)
    with Running(tmp_path) as running:
        client = running.client
        assert index(client) == [("a", version, "READY") for version in versions]
        assert list(client.get_model_metadata("a").versions) == versions
        assert list(client.get_model_metadata("a", versions[0]).versions) == versions[:1]
        for version in versions:
            assert ask(client, "a", version) == float(version)
        assert ask(client, "a") == float(versions[-1])
        for version in {"1", "2", "3"} - set(versions):
            with refused(grpc.StatusCode.NOT_FOUND, "served is " + ", ".join(versions)):
                ask(client, "a", version)


def test_a_poll_serves_what_changes_and_fails_no_request(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "a", 1, 1)
    flags = ("--model_control_mode=poll", f"--repository_poll_seconds={POLL_SECONDS}")
    with Running(tmp_path, *flags) as running:
        client = running.client
        with load_on(running.server, "a") as answers:
            for version in (2, 3):
                write(repository, "a", version, version)
                wait_until(lambda version=version: ask(client, "a") == version)
            write(repository, "a", 3, 30)
            wait_until(lambda: ask(client, "a") == 30)
            (repository / "new.pbtxt").write_text(CONFIG.format(rows=5))
            os.replace(repository / "new.pbtxt", repository / "a/config.pbtxt")
            wait_until(lambda: client.get_model_config("a").config.max_batch_size == 5)
            (repository / "a/3").rename(tmp_path / "taken")
            wait_until(lambda: ask(client, "a") == 2)
        assert answers == {1, 2, 3, 30}

        write(repository, "b", 1, 7)
        wait_until(lambda: client.is_model_ready("b"))
        assert ask(client, "b") == 7
        wait_until(lambda: running.healthy("b") is True)
        (repository / "b").rename(tmp_path / "gone")
        wait_until(lambda: not client.is_model_ready("b"))
        wait_until(lambda: running.healthy("b") is False)
        assert [name for name, _, _ in index(client)] == ["a"]


def warmed(data: str, dims: int = 4) -> str:
    return (
        CONFIG.format(rows=8)
        + f"""
model_warmup [ {{
  name: "first" batch_size: 8 count: 2
  inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ {dims} ] {data} }} }}
}} ]
"""
    )


def test_warm_up_runs_before_the_model_is_ready(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name, data in (
        ("zeros", "zero_data: true"),
        ("random", "random_data: true"),
        ("file", 'input_data_file: "x.bin"'),
        ("missing", 'input_data_file: "x.bin"'),
        ("short", 'input_data_file: "x.bin"'),
    ):
        write(repository, name, 1, 2, config=warmed(data))
    write(repository, "shape", 1, 2, config=warmed("zero_data: true", dims=5))
    for name, size in (("file", 8 * 4 * 4), ("short", 7)):
        (repository / name / "warmup").mkdir()
        (repository / name / "warmup/x.bin").write_bytes(bytes(size))
    with Running(tmp_path) as running:
        states = {name: state for name, _, state in index(running.client)}
        assert states == {
            "zeros": "READY",
            "random": "READY",
            "file": "READY",
            "missing": "UNAVAILABLE",
            "short": "UNAVAILABLE",
            "shape": "UNAVAILABLE",
        }
        why = reasons(running.client)
        for name, word in (("missing", "cannot read"), ("short", "128"), ("shape", "shape")):
            assert "model_warmup[0] ('first')" in why[name, "1"]
            assert word in why[name, "1"]
        assert ask(running.client, "zeros") == 2


def test_instance_groups_place_replicas(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    groups = {
        "one": "instance_group [ { count: 1 kind: KIND_CPU } ]",
        "both": "instance_group [ { kind: KIND_CPU }, { kind: KIND_AUTO } ]",
        "three": "instance_group [ { count: 3 kind: KIND_CPU } ]",
        "gpu": "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]",
    }
    for name, group in groups.items():
        write(repository, name, 1, 2, config=CONFIG.format(rows=8) + group)
    with Running(tmp_path) as running:
        why = reasons(running.client)
        for name, word in (("three", "--devices=cpu*N"), ("gpu", "--devices=cuda:0*N")):
            assert word in why[name, "1"]
        x = np.ones((64, 4), np.float32)
        devices: dict[str, set[str]] = {"one": set(), "both": set()}
        for name, used in devices.items():
            for _ in range(200):
                result = infer(
                    running.client, name, {"x": x}, parameters={"report_split": True}
                )
                split = result.get_response().parameters["split"].string_param
                used |= {part.split("=")[0] for part in split.split(",")}
                if len(used) == 2:
                    break
        assert devices == {"one": {"cpu:0"}, "both": {"cpu:0", "cpu:1"}}


def test_a_hostile_configuration_stops_no_other(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write(repository, "a", 1, 2)
    for name, text in {
        "deep": b"input { " * 100_000,
        "junk": bytes(range(256)) * 64,
        "huge": b"max_batch_size: 8\n" * (6 << 20),
        "numbers": b"max_batch_size: 999999999999999999999999",
    }.items():
        write(repository, name, 1, 2)
        (repository / name / "config.pbtxt").write_bytes(text)
    with Running(tmp_path) as running:
        for (name, _), reason in reasons(running.client).items():
            if name != "a":
                assert "config.pbtxt" in reason, name
                assert len(reason) < 1000
        assert ask(running.client, "a") == 2
