"""Each trainer: does it learn, how fast, where do steps spend time, what would a crash lose."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    DATE, PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS, STEPS_PER_SECOND, YELLOW,
    Query, graph, listing, number,
)  # fmt: skip

TRAINER = ("instance", "trainer")
NAME = "{{trainer}}"
STEP = "braid_training_step_duration_seconds"
WRITTEN = "braid_checkpoint_last_written_timestamp_seconds"


def dashboard() -> Dashboard:
    return build(
        "braid-training",
        "Braid / Training",
        "Each trainer: whether it learns, how fast, where its steps spend their time, and what a "
        "crash would lose.",
        {
            "Now": now(),
            "Learning": learning(),
            "Speed": speed(),
            "Checkpoints": checkpoints(),
        },
        (choice("trainer", "Trainer", "braid_training_loss"),),
    )


def latest(metric: str, *by: str) -> str:
    """A gauge of each trainer."""
    return q.highest(q.select(metric, q.TRAINER), *TRAINER, *by)


def risen(counter: str, *by: str) -> str:
    return q.total(q.rise(counter, q.TRAINER), *TRAINER, *by)


def now() -> list:
    failures = q.select("braid_checkpoints_total", q.TRAINER, 'outcome="failed"')
    return [
        number("Running", PLAIN, "Trainers that take operations.",
               Query(q.total(q.select("braid_trainers", 'state="running"')))),
        number("Failed", PLAIN, "Trainers that take nothing but RestoreCheckpoint and Delete.",
               Query(q.total(q.select("braid_trainers", 'state="failed"'))), limits=((1, RED),)),
        number("Steps", STEPS_PER_SECOND, "Updates of all chosen trainers.",
               Query(q.total(q.rate("braid_training_steps_total", q.TRAINER)))),
        number("Rows", ROWS_PER_SECOND, "Rows that a loss was computed over.",
               Query(q.total(q.rate("braid_training_samples_total", q.TRAINER)))),
        number("Oldest checkpoint", SECONDS,
               "How long ago the trainer that has waited longest wrote one.",
               Query(f"time() - {q.lowest(q.select(WRITTEN, q.TRAINER))}"),
               limits=((3600, YELLOW),)),
        number("Failed checkpoints", PLAIN, "In the last hour.",
               Query(q.total(f"increase({failures}[1h])")), limits=((1, RED),)),
    ]  # fmt: skip


def learning() -> list:
    return [
        graph("Loss", PLAIN, "The loss that was computed last.",
              Query(latest("braid_training_loss"), NAME), width=12, signed=True),
        graph("Gradient norm", PLAIN,
              "Of all gradients together, before they are clipped: of trainers that clip by norm. "
              "It leaps before a loss that is not finite; near zero nothing is learnt any more.",
              Query(latest("braid_training_gradient_norm"), NAME), width=6),
        graph("Learning rate", "sci", "Of the first group of parameters.",
              Query(latest("braid_training_learning_rate"), NAME), width=6),
        graph("Steps skipped", PLAIN,
              "Batches whose loss or gradients were not finite, and that so changed nothing.",
              Query(risen("braid_training_skipped_steps_total"), NAME), width=12),
        graph("Steps replayed", PLAIN,
              "Operations that were sent again and answered from memory: a reply was lost on the "
              "way, or a client was restarted.",
              Query(risen("braid_training_replayed_steps_total"), NAME), width=12),
    ]  # fmt: skip


def speed() -> list:
    steps = q.total(q.rate("braid_training_steps_total", q.TRAINER), *TRAINER)
    phases = q.total(q.rate("braid_training_phase_seconds_total", q.TRAINER), *TRAINER, "phase")
    imbalance = "braid_replica_imbalance_ratio"
    return [
        graph("Step time", SECONDS,
              "The time of the operations that made an update, without waits for the client: p50 "
              "and p99.",
              Query(q.quantile(0.5, STEP, q.TRAINER, by=TRAINER), NAME + " p50"),
              Query(q.quantile(0.99, STEP, q.TRAINER, by=TRAINER), NAME + " p99")),
        graph("Where a step's time goes", SECONDS,
              "Seconds of each phase for each update, of the worker that took longest.",
              Query(f"{phases} / on (instance, trainer) group_left {steps}", NAME + " {{phase}}"),
              stacked=True),
        graph("Imbalance of replicas", RATIO,
              "1 - mean / max of the workers' time for the same batch: the part of the devices "
              "that waits for the slowest. Mean, and what 99 % of the batches did not exceed.",
              Query(q.average(imbalance, q.TRAINER, by=TRAINER), NAME + " mean"),
              Query(q.quantile(0.99, imbalance, q.TRAINER, by=TRAINER), NAME + " p99")),
        graph("Steps", STEPS_PER_SECOND, "Updates.", Query(steps, NAME)),
        graph("Rows", ROWS_PER_SECOND, "Rows that a loss was computed over.",
              Query(q.total(q.rate("braid_training_samples_total", q.TRAINER), *TRAINER), NAME)),
        graph("Rows of a step", PLAIN, "Rows for each update.",
              Query(q.total(q.rate("braid_training_samples_total", q.TRAINER), *TRAINER)
                    + f" / {steps}", NAME)),
    ]  # fmt: skip


def checkpoints() -> list:
    pause, duration = "braid_checkpoint_pause_seconds", "braid_checkpoint_duration_seconds"
    columns = {
        "trainer": ("Trainer", "string"),
        "instance": ("Server", "string"),
        "Value #A": ("Last checkpoint", DATE),
        "Value #B": ("Updates", PLAIN),
        "Value #C": ("Loss", PLAIN),
    }
    return [
        graph("Age of the last checkpoint", SECONDS,
              "What a crash would lose, unless the client sends it again. It also grows while a "
              "trainer has nothing to do.",
              Query(f"time() - {latest(WRITTEN)}", NAME), limits=((3600, YELLOW),)),
        graph("Checkpoints", PLAIN, "Written, or failed.",
              Query(risen("braid_checkpoints_total", "outcome"), NAME + " {{outcome}}")),
        graph("Time to write", SECONDS, "Until a checkpoint was durable: p99. Training goes on.",
              Query(q.quantile(0.99, duration, q.TRAINER, by=TRAINER), NAME)),
        graph("Pause", SECONDS,
              "For how long operations waited while the state was copied for a checkpoint: p99.",
              Query(q.quantile(0.99, pause, q.TRAINER, by=TRAINER), NAME)),
        listing("Trainers", "What is trained where.", columns,
                Query(f"{latest(WRITTEN)} * 1000"),
                Query(latest("braid_training_steps_total")),
                Query(latest("braid_training_loss")), width=16),
    ]  # fmt: skip
