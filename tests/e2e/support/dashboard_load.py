"""Load that puts data into every panel of the dashboards, and Prometheus settings to watch it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import braid
import grpc
import numpy as np
import pytest
import yaml
from e2e.support import oracle, protocol
from e2e.support.server import BINARY, ROOT, Server

MODELS = ("mlp", "smooth", "chain", "waiting_words")
# Model whose clients only stream.
STREAMED = "smooth"
RULES = sorted((ROOT / "deploy/prometheus").glob("*.rules.yaml"))
FAKE_NVML = BINARY.parents[1] / "lib/libfake_nvml.so"


def fake_driver(directory: Path) -> dict[str, str]:
    """Environment in which a server finds the fake NVML, with two GPUs, as the driver's library.
    Makes `directory`."""
    directory.mkdir(exist_ok=True)
    (directory / "libnvidia-ml.so.1").symlink_to(FAKE_NVML.resolve(strict=True))
    return {"LD_LIBRARY_PATH": str(directory)}


def infer(client: braid.Client) -> None:
    for rows in (1, 7, 64, 300):
        client.infer("mlp", {"x": np.zeros((rows, 784), np.float32)})


def stream(stub: protocol.Stub, model: str) -> None:
    """Sends requests that are all in flight at once, and one that is rejected."""
    shapes = [(1, 784), (7, 784), (64, 784), (300, 784)] * 4
    requests = []
    for rows, columns in (*shapes, (1, 7)):
        request = protocol.message("inference.ModelInferRequest")(model_name=model)
        request.inputs.add(name="x", datatype="FP32", shape=(rows, columns))
        request.raw_input_contents.append(np.zeros((rows, columns), np.float32).tobytes())
        requests.append(request)
    refused = [reply.error_message != "" for reply in stub.ModelStreamInfer(iter(requests))]
    assert refused == [False] * len(shapes) + [True]


def fail(client: braid.Client, stub: protocol.Stub) -> None:
    """Makes a call for each status code that alerts and dashboards use."""
    row = np.zeros((1, 784), np.float32)
    for error, model, inputs in (
        (braid.NotFound, "nosuch", {"x": row}),
        (braid.InvalidArgument, "mlp", {"y": row}),
    ):
        with pytest.raises(error):
            client.infer(model, inputs)
    # This model's batches wait for more requests longer than this request's timeout.
    with pytest.raises(braid.DeadlineExceeded):
        client.infer("waiting_words", {"words": np.zeros(1, np.int64)}, timeout=0.1)
    # This server does not load models on request.
    load = protocol.message("inference.RepositoryModelLoadRequest")(model_name="mlp")
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        stub.RepositoryModelLoad(load)


def train(trainer: braid.Trainer) -> None:
    for x, target in oracle.batches_of("chain", "cross_entropy", rows=97, steps=5):
        trainer.step({"x": x}, {"target": target})


def train_and_save(trainer: braid.Trainer) -> None:
    train(trainer)
    trainer.save_checkpoint()


def create_trainer(client: braid.Client) -> braid.Trainer:
    options = {"loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.02}}
    return client.create_trainer("chain", name="chain-sgd", clip_grad_norm=1.0, **options)


def job_flags(directory: Path) -> tuple[str, ...]:
    """Writes the data of jobs and returns the server's flags for them. Makes `directory`."""
    directory.mkdir(exist_ok=True)
    x, target = next(iter(oracle.batches_of("chain", "cross_entropy", rows=960, steps=1)))
    np.savez(directory / "chain.npz", x=x, target=target)
    np.savez(directory / "wrong.npz", x=x, target=target + 1000)
    return f"--data_root={directory}", "--max_running_jobs=2"


def submit_job(client: braid.Client, path: str = "chain.npz", **options: Any) -> braid.Job:
    """Submits a training job; by default, one that runs until the server ends."""
    return client.jobs.train(
        "chain",
        data={"path": path, "inputs": {"x": None}, "targets": {"target": None}},
        loss="cross_entropy",
        optimizer={"name": "SGD", "lr": 0.001},
        batch_size=96,
        **{"epochs": 1_000_000, **options},
    )


def score(client: braid.Client) -> braid.Job:
    """Submits an inference job."""
    return client.jobs.infer(
        "chain",
        data={"path": "chain.npz", "inputs": {"x": None}},
        output={"path": "scores.parquet", "overwrite": True},
    )


def fail_job(client: braid.Client) -> None:
    """Runs a job whose labels are out of range."""
    with pytest.raises(braid.JobError, match="FAILED"):
        submit_job(client, "wrong.npz").wait()


def run_jobs(client: braid.Client) -> None:
    """Runs a job of each kind that succeeds, and one that fails."""
    submit_job(client, epochs=2).wait()
    score(client).wait()
    fail_job(client)


def calls(
    client: braid.Client, stub: protocol.Stub, trainer: braid.Trainer
) -> tuple[Callable[[], None], ...]:
    """Calls to repeat, each on a thread: inference, streams, calls that fail, training, jobs."""
    return (
        lambda: infer(client),
        lambda: stream(stub, "mlp"),
        lambda: stream(stub, STREAMED),
        lambda: fail(client, stub),
        lambda: train_and_save(trainer),
        lambda: run_jobs(client),
    )


class Load:
    """Context manager that repeats each of `works` on its own thread."""

    def __init__(self, *works: Callable[[], None]) -> None:
        self._threads = [threading.Thread(target=self._repeat, args=[work]) for work in works]
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as failure:
            self._failures.append(failure)


def configuration(*servers: Server, seconds: int = 1) -> dict:
    """Settings of deploy/prometheus for the servers braid-0:8002, braid-1:8002 and so on. They are
    scraped every `seconds`."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": f"{seconds}s", "evaluation_interval": f"{seconds}s"}
    config["rule_files"] = [str(path) for path in RULES]
    config["scrape_configs"][0]["static_configs"] = [
        {
            "targets": [f"127.0.0.1:{server.ready['metrics_port']}"],
            "labels": {"instance": f"braid-{number}:8002"},
        }
        for number, server in enumerate(servers)
    ]
    config["scrape_configs"] = config["scrape_configs"][:1]
    return config
