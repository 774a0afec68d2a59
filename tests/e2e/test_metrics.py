"""/metrics: the format is valid, and values match the executed operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import braid
import numpy as np
import pytest
from e2e.support import oracle, training
from e2e.support.metrics import Scrape, documented_metrics, scrape
from e2e.support.model_control import ask, explicit, write
from e2e.support.models import make as make_model
from e2e.support.polling import wait_until
from e2e.support.server import Server

DEVICES = ["cpu:0", "cpu:1"]
INFERENCES = [1, 32, 1000]
STEPS = 4
ROWS = 97


@pytest.fixture(scope="module")
def server(
    start_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory
) -> Server:
    datasets = tmp_path_factory.mktemp("datasets")
    flags = (f"--dataset_root={datasets}", "--dataset_quota=1000000")
    return start_server("cpu*2", names=("mlp", "chain"), flags=flags)


@pytest.fixture(scope="module")
def idle(server: Server) -> Scrape:
    """Metrics before any request."""
    return scrape(server.metrics_url)


@pytest.fixture(scope="module")
def last_loss(server: Server, idle: Scrape) -> float:
    """Runs all operations that are counted below. Keeps the trainer "kept"."""
    with braid.connect(server.address) as client:
        for rows in INFERENCES:
            client.infer("mlp", {"x": np.zeros((rows, 784), np.float32)})
        with pytest.raises(braid.NotFound):
            client.infer("nosuch", {"x": np.zeros((1, 784), np.float32)})
        options = {"loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.1}}
        trainer = client.create_trainer("chain", name="kept", clip_grad_norm=1e3, **options)
        for x, target in oracle.batches_of("chain", "cross_entropy", ROWS, STEPS):
            result = trainer.step({"x": x}, {"target": target})
        trainer.save_checkpoint()
        trainer.publish(wait_durable=True)
        return result.loss


@pytest.fixture(scope="module")
def busy(server: Server, last_loss: float) -> Scrape:
    return scrape(server.metrics_url)


def test_all_metric_names_have_the_servers_prefix(busy: Scrape) -> None:
    assert busy.types
    for name in busy.types:
        assert name.startswith(("braid_", "process_"))
        assert name.endswith("_total") == (busy.types[name] == "counter")


def test_exported_metrics_are_documented(busy: Scrape) -> None:
    documented = documented_metrics()
    for name in set(busy.types):
        metric = documented[name]
        assert (busy.types[name], busy.helps[name]) == (metric.type, metric.help), name
        labels = [set(labels) - {"le"} for labels in busy.labels_of_family(name)]
        assert labels
        assert all(each == metric.labels for each in labels), name


def test_documented_metrics_are_exported(busy: Scrape) -> None:
    """Checks a server that has served, trained and published. Excludes metrics of GPUs and of jobs,
    which test_prometheus.py has."""
    excluded = ("braid_gpu_", "braid_job")
    documented = {name for name in documented_metrics() if not name.startswith(excluded)}
    assert documented - set(busy.types) == set()


def test_requests_by_method_and_code(idle: Scrape, busy: Scrape) -> None:
    def count(method: str, code: str, model: str = "") -> float:
        labels = {"method": method, "model": model, "code": code}
        assert idle.value("braid_requests_total", **labels) == 0
        return busy.value("braid_requests_total", **labels)

    assert count("ModelInfer", "OK", "mlp") == len(INFERENCES)
    assert count("ModelInfer", "NOT_FOUND") == 1  # A hostile name must not create a series.
    assert count("CreateTrainer", "OK", "chain") == 1
    assert count("Step", "OK", "chain") == STEPS


def test_request_duration_is_a_histogram(busy: Scrape) -> None:
    name = "braid_request_duration_seconds"
    assert busy.types[name] == "histogram"
    assert busy.value(f"{name}_count", method="ModelInfer", model="mlp") == len(INFERENCES)
    assert busy.value(f"{name}_count", method="ModelInfer", model="") == 1
    step = {"method": "Step", "model": "chain"}
    assert busy.value(f"{name}_count", **step) == STEPS
    assert 0 < busy.value(f"{name}_sum", **step) < 60
    buckets = sorted(
        (float(labels["le"]), busy.value(f"{name}_bucket", **labels))
        for labels in busy.labels_of(f"{name}_bucket")
        if labels["method"] == "Step"
    )
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert buckets[-1] == (np.inf, STEPS)


def test_batch_sizes(busy: Scrape) -> None:
    """No batch is larger than the model's 64 rows, and all rows are counted."""
    name = "braid_batch_size_rows"
    assert busy.types[name] == "histogram"
    assert busy.value(f"{name}_sum", model="mlp") == sum(INFERENCES)
    assert busy.value(f"{name}_bucket", model="mlp", le="64") == busy.value(
        f"{name}_count", model="mlp"
    )
    assert busy.value("braid_inference_samples_total", model="mlp") == sum(INFERENCES)


def test_queue_duration(busy: Scrape) -> None:
    name = "braid_queue_duration_seconds"
    assert busy.value(f"{name}_count", model="mlp") == len(INFERENCES)
    assert 0 < busy.value(f"{name}_sum", model="mlp") < 60
    assert busy.value("braid_requests_in_flight") == 0
    assert busy.value("braid_request_bytes_in_flight") == 0


def test_models_ready(busy: Scrape) -> None:
    ready = busy.labels_of("braid_model_ready")
    assert {"model": "mlp", "version": "1"} in ready
    assert {labels["model"] for labels in ready} == {"mlp", "chain"}


def test_devices_report_their_usage(busy: Scrape, last_loss: float) -> None:
    """Every row is counted on one device, for inference or training."""
    for work, rows in (("inference", sum(INFERENCES)), ("training", STEPS * ROWS)):
        labels = [{"device": device, "work": work} for device in DEVICES]
        for name in ("braid_device_samples_total", "braid_device_chunk_size_rows_sum"):
            assert sum(busy.value(name, **each) for each in labels) == rows
        queued = "braid_device_queue_duration_seconds"
        chunks = sum(busy.value("braid_device_chunk_size_rows_count", **each) for each in labels)
        assert sum(busy.value(f"{queued}_count", **each) for each in labels) >= chunks
        assert 0 < sum(busy.value(f"{queued}_sum", **each) for each in labels) < 60
    chain = 4 * sum(p.numel() for p in make_model("chain").state_dict().values())
    for device in DEVICES:
        info = {"device": device, "kind": "cpu", "gpu": "", "uuid": ""}
        assert busy.value("braid_device_info", **info) == 1
        assert busy.value("braid_device_healthy", device=device) == 1
        models = busy.value("braid_device_memory_bytes", device=device, owner="models")
        assert models > chain
    # Parameters and gradients, at least; CPU replicas share parameters.
    trainers = [
        busy.value("braid_device_memory_bytes", device=device, owner="trainers")
        for device in DEVICES
    ]
    assert sum(trainers) >= 2 * chain


def test_queue_is_empty_after_the_load(busy: Scrape) -> None:
    assert busy.types["braid_queue_rows"] == "gauge"
    assert {"model": "mlp"} in busy.labels_of("braid_queue_rows")
    assert busy.value("braid_queue_rows", model="mlp") == 0


def test_training_equals_pytorch(busy: Scrape, last_loss: float) -> None:
    assert busy.value("braid_training_steps_total", trainer="kept") == STEPS
    assert busy.value("braid_training_samples_total", trainer="kept") == STEPS * ROWS
    loss = busy.value("braid_training_loss", trainer="kept")
    assert loss == pytest.approx(last_loss, rel=1e-5)


def test_training_steps(idle: Scrape, busy: Scrape) -> None:
    rate = busy.value("braid_training_learning_rate", trainer="kept", group="")
    assert rate == pytest.approx(0.1)
    assert 0 < busy.value("braid_training_gradient_norm", trainer="kept") < 1000
    assert busy.value("braid_training_step_duration_seconds_count", trainer="kept") == STEPS
    assert 0 < busy.value("braid_training_step_duration_seconds_sum", trainer="kept") < 60
    assert busy.value("braid_replica_imbalance_ratio_count", trainer="kept") == STEPS
    assert 0 <= busy.value("braid_replica_imbalance_ratio_sum", trainer="kept") < STEPS
    for phase in ("forward", "backward", "update"):
        labels = {"trainer": "kept", "phase": phase}
        assert 0 < busy.value("braid_training_phase_seconds_total", **labels) < 60
    for state, there in (("running", 1), ("failed", 0)):
        assert idle.value("braid_trainers", state=state) == 0
        assert busy.value("braid_trainers", state=state) == there


def test_checkpoints(idle: Scrape, busy: Scrape) -> None:
    """Creating a trainer writes the first one."""
    written = {"trainer": "kept", "outcome": "written"}
    assert idle.value("braid_checkpoints_total", **written) == 0
    assert busy.value("braid_checkpoints_total", **written) == 2
    for name in ("braid_checkpoint_duration_seconds", "braid_checkpoint_pause_seconds"):
        assert busy.types[name] == "histogram"
        assert busy.value(f"{name}_count", trainer="kept") == 2
        assert 0 < busy.value(f"{name}_sum", trainer="kept") < 60
    name = "braid_checkpoint_last_written_timestamp_seconds"
    assert 0 <= time.time() - busy.value(name, trainer="kept") < 600


def test_busy_seconds_by_device_and_phase(idle: Scrape, busy: Scrape) -> None:
    def seconds(device: str, phase: str) -> float:
        labels = {"device": device, "phase": phase}
        before = idle.value("braid_device_busy_seconds_total", **labels)
        return busy.value("braid_device_busy_seconds_total", **labels) - before

    for device in DEVICES:
        for phase in ("load", "forward", "backward"):
            assert 0 < seconds(device, phase) < 60
    # Once for the whole batch on the primary. An update is sliced over the replicas.
    assert seconds("cpu:0", "loss") > 0
    assert seconds("cpu:1", "loss") == 0
    assert seconds("cpu:0", "update") > 0
    # Other threads load a model, and the first worker tests it. All workers copy a trainer's
    # replicas.
    for device in DEVICES[1:]:
        assert idle.value("braid_device_busy_seconds_total", device=device, phase="load") == 0


def test_series_of_deleted_trainer_disappear(server: Server) -> None:
    x, target = oracle.dataset("chain", 20)
    options = {"loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.1}}
    with braid.connect(server.address) as client:
        with training.new_trainer(client, "chain", **options) as trainer:
            trainer.step({"x": x}, {"target": target})
            labels = {"trainer": trainer.name}
            assert labels in scrape(server.metrics_url).labels_of("braid_training_loss")
        assert labels not in scrape(server.metrics_url).labels_of("braid_training_loss")


def test_series_of_unloaded_model_disappear(tmp_path: Path) -> None:
    write(tmp_path / "models", "a", 1, 2)
    write(tmp_path / "models", "b", 1, 3)
    with explicit(tmp_path, "--load_model=a", "--load_model=b") as running:

        def names() -> set[str]:
            samples = scrape(running.server.metrics_url).samples
            return {value for _, labels in samples for name, value in labels if name == "model"}

        ask(running.client, "a")
        ask(running.client, "b")
        assert names() >= {"a", "b"}
        running.client.unload_model("a")
        # The worker may still hold the model that it ran last.
        wait_until(lambda: "a" not in names())
        assert "b" in names()


def test_device_service_agrees_with_metrics(server: Server, busy: Scrape) -> None:
    with braid.connect(server.address) as client:
        devices = client.devices()
    assert [device.name for device in devices] == DEVICES
    for device in devices:
        assert (device.kind, device.hardware) == ("cpu", "")
        assert device.threads >= 1
        counted = busy.value(
            "braid_device_busy_seconds_total", device=device.name, phase="forward"
        )
        assert device.busy_seconds["forward"] >= counted > 0
        assert sum(device.busy_seconds.values()) < device.uptime_seconds
    assert sum(device.samples for device in devices) >= sum(INFERENCES) + STEPS * ROWS
