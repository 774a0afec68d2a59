"""Two training jobs and an inference job on a server that is killed while they run."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Outcome:
    """Results. weights, losses (by step), metrics: by training job. attempts: of all jobs."""

    weights: dict[str, dict[str, np.ndarray]]
    losses: dict[str, dict[int, float]]
    metrics: dict[str, dict[str, float]]
    scores: pa.Table
    attempts: int


def prepare(directory: Path) -> None:
    """Writes the model of a server in `directory`, which may run three jobs at a time."""
    durable.export_noisy(directory / "models/noisy")


def write_table(server: JobServer, rows: int = ROWS) -> None:
    jobs.write_table(server.tables / "rows.parquet", rows, np.float32, FEATURES, CLASSES)


def submit(client: braid.Client, suffix: str, steps: int) -> dict[str, braid.Job]:
    """Submits the jobs, with IDs that end in `suffix`. Returns them by name."""
    data = {"path": "rows.parquet", "inputs": {"x": "image"}}
    made = {}
    for name, recipe in RECIPES.items():
        targets = {"targets": {"target": "label"}}
        options = {**recipe, "data": {**data, **targets, **recipe.get("data", {})}}
        made[name] = client.jobs.train(
            "noisy", version=1, loss="cross_entropy", batch_size=32, steps=steps, publish="last",
            id=f"{name}-{suffix}", **options,
        )  # fmt: skip
    output = {"path": f"{suffix}.parquet", "keep": ["id"]}
    made["scores"] = client.jobs.infer(
        "noisy", version=1, data=data, output=output, batch_size=64, id=f"scores-{suffix}"
    )
    return made


def outcome(server: JobServer, submitted: dict[str, braid.Job]) -> Outcome:
    """Waits for the jobs, which must succeed."""
    infos = {name: job.wait(timeout=SECONDS) for name, job in submitted.items()}
    weights, losses, metrics = {}, {}, {}
    for name in RECIPES:
        result = infos[name].result
        weights[name] = durable.weights_in(server.data / "models/noisy" / str(result.version))
        loss = submitted[name].metrics(["loss"])["loss"]
        losses[name] = dict(zip(loss.steps.tolist(), loss.values.tolist()))
        metrics[name] = result.metrics
    scores = pq.read_table(infos["scores"].result.output)
    attempts = sum(info.attempts for info in infos.values())
    return Outcome(weights, losses, metrics, scores, attempts)


def differences(actual: Outcome, wanted: Outcome) -> list[str]:
    """Returns a sentence for each difference. attempts may differ."""
    found = []
    for name, state in wanted.weights.items():
        for key, value in state.items():
            if actual.weights[name][key].tobytes() != value.tobytes():
                found.append(f"{name}: weight {key!r} differs")
        # A crash may lose the metrics of its last second.
        steps = [
            step for step, loss in actual.losses[name].items() if loss != wanted.losses[name][step]
        ]
        if steps:
            found.append(f"{name}: loss differs at steps {steps[:10]}")
        if actual.metrics[name] != wanted.metrics[name]:
            found.append(f"{name}: {actual.metrics[name]} instead of {wanted.metrics[name]}")
    if actual.scores["id"].to_pylist() != wanted.scores["id"].to_pylist():
        found.append("scores: not each row once, in order")
    elif not np.allclose(
        tensor_of(actual.scores, "output__0"),
        tensor_of(wanted.scores, "output__0"),
        rtol=0,
        atol=TOLERANCE,
    ):
        found.append("scores: the outputs differ")
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
