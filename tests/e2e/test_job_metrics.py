"""Metrics of jobs on /metrics: their values follow the jobs, and no series outlives its job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from e2e.support import durable, jobs
from e2e.support.durable import CLASSES, FEATURES
from e2e.support.jobs import JobServer
from e2e.support.metrics import Scrape, documented_metrics, scrape
from e2e.support.polling import wait_until

ROWS = 640
SECONDS = 120
TRAIN: dict[str, Any] = {
    "data": {"path": "rows.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}},
    "loss": "cross_entropy", "optimizer": {"name": "SGD", "lr": 0.01}, "batch_size": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    directory = tmp_path_factory.mktemp("job-metrics")
    durable.export_noisy(directory / "models/noisy")
    with jobs.serving(directory) as server:
        table = jobs.write_table(
            server.tables / "rows.parquet", ROWS, np.float32, FEATURES, CLASSES
        )
        nulls = pa.array([None] * ROWS, pa.int64())
        at = table.column_names.index("label")
        pq.write_table(table.set_column(at, "label", nulls), server.tables / "nulls.parquet")
        yield server


def series_of(scraped: Scrape, job: braid.Job) -> dict[str, dict[str, str]]:
    """Returns the labels of each metric that has series of the job."""
    return {
        name: dict(labels)
        for name, labels in scraped.samples
        if dict(labels).get("job_id") == job.id
    }


def test_metrics_follow_jobs(server: JobServer, client: braid.Client) -> None:
    """Runs a training job that is preempted by an inference job, paused, resumed and cancelled, and
    one that fails."""
    before = scrape(server.metrics_url)
    assert before.value("braid_jobs", kind="train", state="running") == 0
    assert ("braid_jobs", frozenset({("kind", "infer"), ("state", "failed")})) in before.samples
    started = time.time()
    job = client.jobs.train("noisy", **TRAIN, epochs=1_000_000)
    wait_until(lambda: job.info().progress.step >= 40)
    running = scrape(server.metrics_url)
    labels = {"job_id": job.id, "kind": "train", "model": "noisy"}
    described = {
        name: metric for name, metric in documented_metrics().items() if "job_id" in metric.labels
    }
    assert series_of(running, job) == dict.fromkeys(described, labels)
    value = {name: running.value(name, **labels) for name in described}
    assert value["braid_job_planned_rows"] == ROWS * 1_000_000
    assert value["braid_job_planned_steps"] == ROWS // 32 * 1_000_000
    assert value["braid_job_done_steps"] >= 40
    assert value["braid_job_done_rows"] == 32 * value["braid_job_done_steps"]
    assert value["braid_job_progress_ratio"] == pytest.approx(
        value["braid_job_done_rows"] / value["braid_job_planned_rows"]
    )
    assert 0 < value["braid_job_loss"] < 10
    first, last = (
        value[f"braid_job_{name}_timestamp_seconds"] for name in ("started", "last_progress")
    )
    assert started - 1 <= first <= last <= time.time() + 1
    assert running.value("braid_jobs", kind="train", state="running") == 1
    assert running.value("braid_job_steps_total") >= 40

    client.jobs.infer(
        "noisy", data={"path": "rows.parquet", "inputs": {"x": "image"}},
        output={"path": "scores.parquet"}, priority=1,
    ).wait(timeout=SECONDS)  # fmt: skip
    wait_until(lambda: job.info().state == "RUNNING")
    job.pause()
    wait_until(lambda: job.info().state == "PAUSED")
    failing = client.jobs.train(
        "noisy", **{**TRAIN, "data": {**TRAIN["data"], "path": "nulls.parquet"}}, epochs=1
    )
    with pytest.raises(braid.JobError, match="null"):
        failing.wait(timeout=SECONDS)
    assert series_of(scrape(server.metrics_url), job) == {}
    job.resume()
    wait_until(lambda: job.info().state == "RUNNING")
    job.cancel()
    with pytest.raises(braid.JobError, match="CANCELLED"):
        job.wait(timeout=SECONDS)

    ended = scrape(server.metrics_url)
    assert "job_id" not in {name for _, labels in ended.samples for name, _ in labels}
    for kind, state in (("train", "failed"), ("train", "cancelled"), ("infer", "succeeded")):
        labels = {"kind": kind, "state": state}
        assert ended.value("braid_jobs", **labels) == 1
        assert ended.value("braid_job_duration_seconds_count", **labels) == 1
        assert 0 < ended.value("braid_job_duration_seconds_sum", **labels) < SECONDS
    assert ended.value("braid_job_failures_total", kind="train", code="INVALID_ARGUMENT") == 1
    assert ended.value("braid_job_preemptions_total", kind="train") == 1
    assert ended.value("braid_job_pauses_total", kind="train") == 1
    assert ended.value("braid_job_queue_duration_seconds_count", kind="train") == 4
    assert ended.value("braid_job_queue_duration_seconds_count", kind="infer") == 1
    assert ended.value("braid_job_rows_total", kind="infer") == ROWS
    steps = ended.value("braid_job_steps_total")
    assert ended.value("braid_job_rows_total", kind="train") == 32 * steps >= 32 * 40
