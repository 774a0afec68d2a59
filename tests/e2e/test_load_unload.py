"""Models are loaded and unloaded on request while other models are served."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import braid
import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models
from e2e.support.model_control import (
    CALL_SECONDS,
    CONFIG,
    Running,
    Times,
    ask,
    explicit,
    index,
    load_on,
    queued,
    reasons,
    refused,
    write,
)
from e2e.support.polling import wait_until
from e2e.support.server import run_to_exit


def test_models_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    write(tmp_path / "models", "b", 1, 3)
    with explicit(tmp_path, "--load_model=a") as running:
        client = running.client
        assert index(client) == [("a", "1", "READY"), ("b", "", "")]
        assert client.is_model_ready("a")
        assert not client.is_model_ready("b")
        with refused(grpc.StatusCode.NOT_FOUND, "'b'", "was not loaded"):
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


def test_failed_load_reports_the_reason(tmp_path: Path) -> None:
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


def test_model_cannot_use_a_name_of_the_health_service(tmp_path: Path) -> None:
    for name in ("a", "liveness", "readiness"):
        write(tmp_path / "models", name, 1, 2)
    with explicit(tmp_path, "--load_model=*") as running:
        client = running.client
        assert ask(client, "a") == 2
        for name in ("liveness", "readiness"):
            assert (name, "1", "UNAVAILABLE") in index(client)
            assert f"reserved model name '{name}'" in reasons(client)[name, "1"]
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "health service", f"'{name}'"):
                client.load_model(name)
            # The server's own health status is unchanged.
            assert running.healthy(name)


def test_load_request_may_contain_a_configuration(tmp_path: Path) -> None:
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
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "'input' is missing", "send all of it"):
            client.load_model("a", config=json.dumps({"max_batch_size": 5}))
        assert client.get_model_config("a").config.max_batch_size == 3
        assert reasons(client)["a", "1"].startswith("the last load failed: parameters")
        client.load_model("a")
        assert client.get_model_config("a").config.max_batch_size == 8
        assert reasons(client)["a", "1"] == ""


def test_other_control_modes_reject_loads(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    for mode in ("none", "poll"):
        with Running(tmp_path, f"--model_control_mode={mode}") as running:
            with refused(grpc.StatusCode.UNAVAILABLE, "not allowed", "--model_control_mode"):
                running.client.load_model("a")
            with refused(grpc.StatusCode.UNAVAILABLE, "not allowed"):
                running.client.unload_model("a")
            assert ask(running.client, "a") == 2
        shutil.rmtree(tmp_path / "run")


def test_missing_startup_model_fails_the_start(tmp_path: Path) -> None:
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


def test_reload_does_not_fail_requests(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 1)
    with explicit(tmp_path, "--load_model=a") as running:
        with load_on(running.server, "a") as answers:
            for factor in range(2, 22):
                write(tmp_path / "models", "a", 1, factor)
                running.client.load_model("a")
                assert ask(running.client, "a") == factor
        assert answers <= {float(factor) for factor in range(1, 22)}
        assert len(answers) > 10


class Slow(Times):
    """Multiplies after matrix products that take some milliseconds."""

    def __init__(self, factor: float) -> None:
        super().__init__(factor)
        self.register_buffer("one", torch.eye(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.one
        for _ in range(5):
            product = product @ self.one
        return x * self.factor * product[0, 0]


def runs_within(seconds: float) -> int:
    """Returns the number of runs of Slow in that time on one thread."""
    module, x = Slow(1).eval(), torch.ones(1, 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            runs, start = 0, time.monotonic()
            while time.monotonic() - start < seconds / 10:
                module(x)
                runs += 10
    finally:
        torch.set_num_threads(threads)
    return runs


def test_long_warm_up_does_not_delay_requests(tmp_path: Path) -> None:
    warm_up_seconds, deadline = 3, 1
    config = CONFIG.format(rows=8)
    warm_up = f"""model_warmup [ {{
      name: "long" batch_size: 1 count: {runs_within(warm_up_seconds)}
      inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ 4 ] zero_data: true }} }}
    }} ]"""
    models.export(tmp_path / "models/a", Slow(1), config=config)
    with explicit(tmp_path, "--load_model=a") as running:
        models.export(tmp_path / "models/a", Slow(2), config=config + warm_up, version=2)
        with load_on(running.server, "a", clients=1, seconds=deadline) as answers:
            wait_until(lambda: len(answers) > 0)
            start = time.monotonic()
            running.client.load_model("a")
            assert time.monotonic() - start > deadline
            assert ask(running.client, "a") == 2
        assert answers <= {1.0, 2.0}


def test_concurrent_loads_and_unloads_of_one_model(tmp_path: Path) -> None:
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


def test_unload_answers_queued_requests(tmp_path: Path) -> None:
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


def test_repeated_reloads_do_not_leak_memory(tmp_path: Path) -> None:
    """The model has 8 MB; its replicas alone would take 1.6 GB."""
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


def test_trainer_survives_the_unload_of_its_model(tmp_path: Path) -> None:
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
            # A published version is newer than the versions in the repository.
            running.client.load_model("a")
            assert ask(running.client, "a") == published
            running.client.unload_model("a")
            running.client.load_model("a")
            assert ask(running.client, "a") == published


def test_failed_load_exits_if_configured(tmp_path: Path) -> None:
    (tmp_path / "models/broken/1").mkdir(parents=True)
    (tmp_path / "models/broken/1/model.pt").write_bytes(b"no model")
    flags = (f"--model_repository={tmp_path / 'models'}", "--devices=cpu", "--grpc_port=0")
    done = run_to_exit(*flags, "--metrics_port=0", "--exit_on_error")
    assert done.returncode == 2
    assert "--exit_on_error: failed to load model 'broken': model.pt" in done.stderr
