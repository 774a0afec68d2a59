"""Metrics of jobs and trainers as CSV, JSON Lines and event files (--tracking_dir)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braid
import numpy as np
import pytest
from e2e.support import durable, jobs
from e2e.support.durable import CLASSES, FEATURES
from e2e.support.jobs import JobServer
from e2e.support.polling import wait_until
from e2e.support.tracked import csv_values, json_values
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROWS = 500
STEPS = 600
SECONDS = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[JobServer]:
    durable.export_noisy(tmp_path / "models/noisy")
    with jobs.serving(tmp_path, tracking_dir=str(tmp_path / "tracking")) as server:
        jobs.write_table(server.tables / "train.parquet", ROWS, np.float32, FEATURES, CLASSES)
        yield server


@pytest.fixture
def tracking(tmp_path: Path) -> Path:
    return tmp_path / "tracking"


def event_values(folder: Path) -> dict[tuple[int, str], float]:
    """Returns the values that TensorBoard shows. Fails if it shows a step twice."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    found = [
        (event.step, tag, event.value)
        for tag in accumulator.Tags()["scalars"]
        for event in accumulator.Scalars(tag)
    ]
    values = {(step, tag): value for step, tag, value in found}
    assert len(values) == len(found)
    return values


def newest_step(folder: Path) -> int:
    file = folder / "metrics.csv"
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0


def assert_tracked(folder: Path, losses: dict[int, float]) -> dict[tuple[int, str], float]:
    """Compares the losses by step, waiting for the last, and the three files with each other."""
    last = max(losses)

    def written() -> bool:
        values = csv_values(folder)
        # Before a restore, the step may have had another loss.
        is_last = newest_step(folder) > last or values.get((last, "loss")) == losses[last]
        return is_last and values == json_values(folder)

    wait_until(written, SECONDS)
    values = csv_values(folder)
    assert {step: value for (step, name), value in values.items() if name == "loss"} == losses
    shown = event_values(folder)
    assert shown == {key: np.float32(value) for key, value in values.items()}
    return values


def submit(client: braid.Client, **options: Any) -> braid.Job:
    return client.jobs.train(
        "noisy",
        data={"path": "train.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}},
        loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.05}, batch_size=32, seed=1,
        **options,
    )  # fmt: skip


def create(client: braid.Client, **options: Any) -> braid.Trainer:
    return client.create_trainer(
        "noisy", name="mine", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.05}, **options
    )


def test_kill_9_leaves_every_step_once_in_all_files(server: JobServer, tracking: Path) -> None:
    """A job and a trainer continue after a crash, which undoes the steps since their checkpoints."""
    folder, own = tracking / "jobs/curves", tracking / "trainers/mine"
    with durable.connect(server) as client:
        trainer = create(client, journal="none")
        losses = {step: trainer.step(*durable.batch(step)).loss for step in range(1, 6)}
        trainer.save_checkpoint()
        for step in range(6, 10):
            trainer.step(*durable.batch(step))
        wait_until(lambda: newest_step(own) == 9, SECONDS)
        job = submit(
            client, id="curves", steps=STEPS, checkpoint_every=STEPS // 4,
            evaluate={"path": "train.parquet", "every": f"{STEPS // 2} steps",
                      "metrics": ["accuracy"]},
        )  # fmt: skip
        wait_until(lambda: newest_step(folder) > 0, SECONDS)  # at the latest, its first checkpoint
        server.start_again()
        job.wait(timeout=SECONDS)
        assert len(list(folder.glob("events.out.tfevents.*"))) == 2

        # The trainer's client takes another course.
        trainer = client.trainer("mine")
        assert newest_step(own) == 5
        for step in range(6, 9):
            losses[step] = trainer.step(*durable.batch(100 + step)).loss
        result = trainer.evaluate([durable.batch(1)], metrics=["accuracy"])
        values = assert_tracked(own, losses)
        assert {name for step, name in values if step == 8} == {
            "loss", "lr", "rows_per_second", "evaluation/loss", "evaluation/accuracy",
        }  # fmt: skip
        assert values[8, "evaluation/loss"] == result.loss
        assert values[8, "lr"] == 0.05

        series = job.metrics(["loss"])["loss"]
        assert series.steps.tolist() == list(range(1, STEPS + 1))
        stored = dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        values = assert_tracked(folder, stored)
        assert [step for step, name in values if name == "evaluation/accuracy"] == [
            STEPS // 2, STEPS,
        ]  # fmt: skip


def test_a_restored_checkpoint_removes_later_steps(server: JobServer, tracking: Path) -> None:
    with durable.connect(server) as client:
        trainer = create(client)
        losses = {step: trainer.step(*durable.batch(step)).loss for step in (1, 2)}
        trainer.save_checkpoint()
        trainer.step(*durable.batch(3))
        trainer.restore_checkpoint()
        losses[3] = trainer.step(*durable.batch(7)).loss
        assert_tracked(tracking / "trainers/mine", losses)


def test_removing_a_job_or_a_trainer_removes_its_folder(server: JobServer, tracking: Path) -> None:
    with durable.connect(server) as client:
        trainer = create(client)
        trainer.step(*durable.batch(1))
        job = submit(client, id="gone", steps=3)
        job.wait(timeout=SECONDS)
        for folder in (tracking / "trainers/mine", tracking / "jobs/gone"):
            wait_until(lambda folder=folder: newest_step(folder) > 0, SECONDS)
        trainer.delete()
        assert not (tracking / "trainers/mine").exists()
        job.delete()
        assert not (tracking / "jobs/gone").exists()


def test_only_training_jobs_have_a_folder(server: JobServer, tracking: Path) -> None:
    with durable.connect(server) as client:
        client.jobs.infer(
            "noisy", id="scores", data={"path": "train.parquet", "inputs": {"x": "image"}},
            output={"path": "scores.parquet"},
        ).wait(timeout=SECONDS)  # fmt: skip
        submit(client, id="curves", steps=3).wait(timeout=SECONDS)
    wait_until(lambda: newest_step(tracking / "jobs/curves") > 0, SECONDS)
    assert [folder.name for folder in (tracking / "jobs").iterdir()] == ["curves"]


def test_a_folder_that_cannot_be_written_does_not_fail_the_training(
    server: JobServer, tracking: Path
) -> None:
    (tracking / "jobs").mkdir()
    (tracking / "jobs/blocked").write_text("a file instead of a folder")
    with durable.connect(server) as client:
        submit(client, id="blocked", steps=3).wait(timeout=SECONDS)
    wait_until(lambda: "metrics are not written" in server.log, SECONDS)
    assert server.log.count("metrics are not written") == 1
