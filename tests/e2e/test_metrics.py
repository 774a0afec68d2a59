"""/metrics: it parses, and its numbers are those of what was done."""

from __future__ import annotations

from collections.abc import Callable

import braid
import numpy as np
import pytest
from e2e import oracle, training
from e2e.metrics import Scrape, scrape
from e2e.server import Server

DEVICES = ["cpu:0", "cpu:1"]
INFERENCES = [1, 32, 1000]
STEPS = 4
ROWS = 97


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("cpu*2", names=("mlp", "chain"))


@pytest.fixture(scope="module")
def idle(server: Server) -> Scrape:
    """Before any request."""
    return scrape(server.metrics_url)


@pytest.fixture(scope="module")
def last_loss(server: Server, idle: Scrape) -> float:
    """Does all that is counted below; leaves the trainer "kept"."""
    with braid.connect(server.address) as client:
        for rows in INFERENCES:
            client.infer("mlp", {"x": np.zeros((rows, 784), np.float32)})
        with pytest.raises(braid.NotFound):
            client.infer("nosuch", {"x": np.zeros((1, 784), np.float32)})
        options = {"loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.1}}
        trainer = client.create_trainer("chain", name="kept", **options)
        for x, target in oracle.batches_of("chain", "cross_entropy", ROWS, STEPS):
            result = trainer.step({"x": x}, {"target": target})
        trainer.save_checkpoint()
        return result.loss


@pytest.fixture(scope="module")
def busy(server: Server, last_loss: float) -> Scrape:
    return scrape(server.metrics_url)


def test_every_name_is_the_servers_own(busy: Scrape) -> None:
    assert busy.types
    for name in busy.types:
        assert name.startswith(("braid_", "process_"))
        assert name.endswith("_total") == (busy.types[name] == "counter")


def test_requests_by_method_and_code(idle: Scrape, busy: Scrape) -> None:
    def count(method: str, code: str, model: str = "") -> float:
        labels = {"method": method, "model": model, "code": code}
        assert idle.value("braid_requests_total", **labels) == 0
        return busy.value("braid_requests_total", **labels)

    assert count("ModelInfer", "OK", "mlp") == len(INFERENCES)
    assert count("ModelInfer", "NOT_FOUND") == 1  # a hostile name makes no series
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
    """No batch is larger than the model's 64 rows, and none of the rows is lost."""
    name = "braid_batch_size_rows"
    assert busy.types[name] == "histogram"
    assert busy.value(f"{name}_sum", model="mlp") == sum(INFERENCES)
    assert busy.value(f"{name}_bucket", model="mlp", le="64") == busy.value(
        f"{name}_count", model="mlp"
    )
    assert busy.value("braid_inference_samples_total", model="mlp") == sum(INFERENCES)


def test_queue_is_empty_again(busy: Scrape) -> None:
    assert busy.types["braid_queue_rows"] == "gauge"
    assert {"model": "mlp"} in busy.labels_of("braid_queue_rows")
    assert busy.value("braid_queue_rows", model="mlp") == 0


def test_training(busy: Scrape, last_loss: float) -> None:
    assert busy.value("braid_training_steps_total", trainer="kept") == STEPS
    assert busy.value("braid_training_samples_total", trainer="kept") == STEPS * ROWS
    loss = busy.value("braid_training_loss", trainer="kept")
    assert loss == pytest.approx(last_loss, rel=1e-5)


def test_checkpoints(idle: Scrape, busy: Scrape) -> None:
    """The first is written when the trainer is created."""
    written = {"trainer": "kept", "outcome": "written"}
    assert idle.value("braid_checkpoints_total", **written) == 0
    assert busy.value("braid_checkpoints_total", **written) == 2
    for name in ("braid_checkpoint_duration_seconds", "braid_checkpoint_pause_seconds"):
        assert busy.types[name] == "histogram"
        assert busy.value(f"{name}_count", trainer="kept") == 2
        assert 0 < busy.value(f"{name}_sum", trainer="kept") < 60


def test_busy_seconds_by_device_and_phase(idle: Scrape, busy: Scrape) -> None:
    def seconds(device: str, phase: str) -> float:
        labels = {"device": device, "phase": phase}
        before = idle.value("braid_device_busy_seconds_total", **labels)
        return busy.value("braid_device_busy_seconds_total", **labels) - before

    for device in DEVICES:
        for phase in ("forward", "backward"):
            assert 0 < seconds(device, phase) < 60
    # Once for the whole batch, on the primary; an update's slices are shared out.
    assert seconds("cpu:0", "loss") > 0
    assert seconds("cpu:1", "loss") == 0
    assert seconds("cpu:0", "update") > 0
    for device in DEVICES:
        assert idle.value("braid_device_busy_seconds_total", device=device, phase="load") > 0


def test_series_of_a_deleted_trainer_end(server: Server) -> None:
    x, target = oracle.dataset("chain", 20)
    options = {"loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.1}}
    with braid.connect(server.address) as client:
        with training.new_trainer(client, "chain", **options) as trainer:
            trainer.step({"x": x}, {"target": target})
            labels = {"trainer": trainer.name}
            assert labels in scrape(server.metrics_url).labels_of("braid_training_loss")
        assert labels not in scrape(server.metrics_url).labels_of("braid_training_loss")


def test_device_service_counts_the_same(server: Server, busy: Scrape) -> None:
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
