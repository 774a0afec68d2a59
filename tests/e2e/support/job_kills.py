"""Two training jobs and an inference job on a server that is killed while they run."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import braid
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from e2e.support import durable, jobs
from e2e.support.durable import CLASSES, FEATURES
from e2e.support.jobs import JobServer, tensor_of
from e2e.support.polling import wait_until

ROWS = 4_000
SECONDS = 600
# Batches of inference jobs differ in size, and so may the last bits of their outputs.
TOLERANCE = 1e-5
MAX_RUN_SECONDS = 1.5

# Training jobs by name. The model has dropout and batch norm.
RECIPES: dict[str, dict[str, Any]] = {
    "adamw": {
        "optimizer": {"name": "AdamW", "lr": 3e-3, "amsgrad": True},
        "schedule": {"name": "CosineAnnealingLR", "T_max": 50, "warmup": {"steps": 20}},
        "clip_grad_norm": 1.0,
        "checkpoint_every": 25,
        "seed": 1,
    },
    "sgd": {
        "optimizer": {"name": "SGD", "lr": 0.05, "momentum": 0.9},
        "data": {"weights": "weight", "split": {"validation": 0.1}},
        "evaluate": {"every": "150 steps", "metrics": ["accuracy"]},
        "checkpoint_every_seconds": 0.2,
        "seed": 2,
    },
}
SCORES = "scores"
NAMES = (*RECIPES, SCORES)


@dataclass(frozen=True)
class Outcome:
    """Result of a job. weights, losses (by step) and metrics: of a training job. scores: output of
    the inference job."""

    attempts: int
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    scores: pa.Table | None = None


def prepare(directory: Path) -> None:
    """Writes the model of a server in `directory`, which may run three jobs at a time."""
    durable.export_noisy(directory / "models/noisy")


def write_table(server: JobServer, rows: int = ROWS) -> None:
    jobs.write_table(server.tables / "rows.parquet", rows, np.float32, FEATURES, CLASSES)


def submit(client: braid.Client, suffix: str, steps: int) -> dict[str, braid.Job]:
    """Submits a job of each name, with IDs that end in `suffix`. Returns them by name."""
    return {name: submit_one(client, name, f"{name}-{suffix}", steps) for name in NAMES}


def submit_one(
    client: braid.Client, name: str, id: str, steps: int, priority: int = 0
) -> braid.Job:
    """Submits the job of NAMES as job `id`. steps: of a training job."""
    data = {"path": "rows.parquet", "inputs": {"x": "image"}}
    if name == SCORES:
        output = {"path": f"{id}.parquet", "keep": ["id"]}
        return client.jobs.infer(
            "noisy", version=1, data=data, output=output, batch_size=64, id=id, priority=priority
        )
    recipe = RECIPES[name]
    data = {**data, "targets": {"target": "label"}, **recipe.get("data", {})}
    return client.jobs.train(
        "noisy", version=1, loss="cross_entropy", batch_size=32, steps=steps, publish="last",
        id=id, priority=priority, **{**recipe, "data": data},
    )  # fmt: skip


def outcomes(server: JobServer, submitted: dict[str, braid.Job]) -> dict[str, Outcome]:
    """Waits for the jobs, which must succeed. Returns their results by name."""
    return {name: outcome(server, job) for name, job in submitted.items()}


def outcome(server: JobServer, job: braid.Job) -> Outcome:
    """Waits for the job, which must succeed."""
    info = job.wait(timeout=SECONDS)
    if info.kind == "infer":
        return Outcome(info.attempts, scores=pq.read_table(info.result.output))
    weights = durable.weights_in(server.data / "models/noisy" / str(info.result.version))
    loss = job.metrics(["loss"])["loss"]
    losses = dict(zip(loss.steps.tolist(), loss.values.tolist()))
    return Outcome(info.attempts, weights, losses, info.result.metrics)


def all_differences(actual: dict[str, Outcome], wanted: dict[str, Outcome]) -> list[str]:
    """Returns a sentence for each difference of the jobs."""
    return [
        f"{name}: {found}"
        for name, outcome in wanted.items()
        for found in differences(actual[name], outcome)
    ]


def differences(actual: Outcome, wanted: Outcome) -> list[str]:
    """Returns a sentence for each difference. attempts may differ."""
    found = [
        f"weight {key!r} differs"
        for key, value in wanted.weights.items()
        if actual.weights[key].tobytes() != value.tobytes()
    ]
    # A crash may lose the metrics of its last second.
    steps = [step for step, loss in actual.losses.items() if loss != wanted.losses[step]]
    if steps:
        found.append(f"loss differs at steps {steps[:10]}")
    if actual.metrics != wanted.metrics:
        found.append(f"{actual.metrics} instead of {wanted.metrics}")
    if wanted.scores is None:
        return found
    if actual.scores["id"].to_pylist() != wanted.scores["id"].to_pylist():
        found.append("not each row once, in order")
    elif not np.allclose(
        tensor_of(actual.scores, "output__0"),
        tensor_of(wanted.scores, "output__0"),
        rtol=0,
        atol=TOLERANCE,
    ):
        found.append("the outputs differ")
    return found


def kill(
    server: JobServer, client: braid.Client, submitted: dict[str, braid.Job], moments: random.Random
) -> bool:
    """Kills the server at a random moment and restarts it. False if the jobs have ended before.

    Three crashes in a row without durable progress fail a job. So first waits until each job has
    made some since it last started, or has not crashed yet.
    """
    infos = {name: job.info() for name, job in submitted.items()}
    wait_until(
        lambda: all(
            job.info().has_ended
            or infos[name].attempts < 2
            or job.info().progress.durable_rows > infos[name].progress.durable_rows
            for name, job in submitted.items()
        ),
        SECONDS,
    )
    time.sleep(moments.uniform(0, MAX_RUN_SECONDS))
    if all(job.info().has_ended for job in submitted.values()):
        return False
    server.start_again()
    client.wait_ready(SECONDS)
    return True
