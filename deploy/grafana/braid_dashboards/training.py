"""Dashboard of training: loss, speed and checkpoints of each trainer."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build, choice
from braid_dashboards.panels import (
    BYTES, BYTES_PER_SECOND, DATE, EXACT, PER_MINUTE, PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS,
    STEPS_PER_SECOND, YELLOW, Query, graph, listing, number,
)  # fmt: skip

TRAINER = ("instance", "trainer")
NAME = "{{trainer}}"
STEP = "braid_training_step_duration_seconds"
WRITTEN = "braid_checkpoint_last_written_timestamp_seconds"


def dashboard() -> Dashboard:
    return build(
        "braid-training",
        "Braid / Training",
        "Each trainer, of a client or a job: loss, speed, time per phase and checkpoints.",
        {
            "Now": now(),
            "Learning": learning(),
            "Speed": speed(),
            "Checkpoints": checkpoints(),
        },
        (choice("trainer", "Trainer", "braid_training_loss"),),
    )


def latest(metric: str, *by: str) -> str:
    """Expression of a gauge for each trainer."""
    return q.highest(q.select(metric, q.TRAINER), *TRAINER, *by)


def per_minute(counter: str, *by: str) -> str:
    return q.total(q.per_minute(counter, q.TRAINER), *TRAINER, *by)


def now() -> list:
    failures = q.select("braid_checkpoints_total", q.TRAINER, 'outcome="failed"')
    return [
        number("Running", PLAIN, "Trainers that accept operations.",
               Query(q.total(q.select("braid_trainers", 'state="running"')))),
        number("Failed", PLAIN, "Trainers that accept only RestoreCheckpoint and DeleteTrainer.",
               Query(q.total(q.select("braid_trainers", 'state="failed"'))), limits=((1, RED),)),
        number("Steps", STEPS_PER_SECOND, "Updates of all selected trainers.",
               Query(q.total(q.rate("braid_training_steps_total", q.TRAINER)))),
        number("Rows", ROWS_PER_SECOND, "Rows with a computed loss.",
               Query(q.total(q.rate("braid_training_samples_total", q.TRAINER)))),
        number("Oldest checkpoint", SECONDS,
               "Age of the least recent checkpoint of any trainer.",
               Query(f"time() - {q.lowest(q.select(WRITTEN, q.TRAINER))}"),
               limits=((3600, YELLOW),)),
        number("Failed checkpoints", PLAIN, "Checkpoints that failed in the last hour.",
               Query(q.total(f"increase({failures}[1h])")), limits=((1, RED),)),
    ]  # fmt: skip


def learning() -> list:
    return [
        graph("Loss", PLAIN, "Latest loss.",
              Query(latest("braid_training_loss"), NAME), width=12, signed=True),
        graph("Gradient norm", PLAIN,
              "Norm of all gradients before clipping, for trainers that clip by norm. It often "
              "jumps before the loss becomes non-finite. Near zero, training has stalled.",
              Query(latest("braid_training_gradient_norm"), NAME), width=12),
        graph("Learning rate", PLAIN, "Learning rate of each parameter group, by its pattern.",
              Query(latest("braid_training_learning_rate", "group"), NAME + " {{group}}"),
              calcs=("lastNotNull",)),
        graph("Steps skipped", PER_MINUTE,
              "Batches with a non-finite loss or non-finite gradients, which cause no update.",
              Query(per_minute("braid_training_skipped_steps_total"), NAME), most=1),
        graph("Steps replayed", PER_MINUTE,
              "Retried operations that the server answered with the stored reply, because the "
              "first reply was lost or the client restarted.",
              Query(per_minute("braid_training_replayed_steps_total"), NAME), most=1),
    ]  # fmt: skip


def speed() -> list:
    steps = q.total(q.rate("braid_training_steps_total", q.TRAINER), *TRAINER)
    phases = q.total(q.rate("braid_training_phase_seconds_total", q.TRAINER), *TRAINER, "phase")
    imbalance = "braid_replica_imbalance_ratio"
    return [
        graph("Step time", SECONDS,
              "Duration of operations with an update, without waits for the client: p50 and p99.",
              Query(q.quantile(0.5, STEP, q.TRAINER, by=TRAINER), NAME + " p50"),
              Query(q.quantile(0.99, STEP, q.TRAINER, by=TRAINER), NAME + " p99")),
        graph("Step time by phase", SECONDS,
              "Seconds per update in each phase, for the slowest worker. The rest of the step time "
              "is the wait for the devices.",
              Query(f"{phases} / on (instance, trainer) group_left {steps}", NAME + " {{phase}}"),
              stacked=True, calcs=()),
        graph("Imbalance of replicas", RATIO,
              "1 - mean / max of the workers' time for the same batch: the fraction of device time "
              "spent waiting for the slowest one. Mean and p99.",
              Query(q.average(imbalance, q.TRAINER, by=TRAINER), NAME + " mean"),
              Query(q.quantile(0.99, imbalance, q.TRAINER, by=TRAINER), NAME + " p99")),
        graph("Steps per second", STEPS_PER_SECOND, "Updates.", Query(steps, NAME)),
        graph("Rows per second", ROWS_PER_SECOND, "Rows with a computed loss.",
              Query(q.total(q.rate("braid_training_samples_total", q.TRAINER), *TRAINER), NAME)),
        graph("Rows per step", PLAIN, "Rows per update.",
              Query(q.total(q.rate("braid_training_samples_total", q.TRAINER), *TRAINER)
                    + f" / {steps}", NAME)),
    ]  # fmt: skip


def checkpoints() -> list:
    pause, duration = "braid_checkpoint_pause_seconds", "braid_checkpoint_duration_seconds"
    columns = {
        "trainer": ("Trainer", "string"),
        "instance": ("Server", "string"),
        "Value #A": ("Last checkpoint", DATE),
        "Value #B": ("Updates", EXACT),
        "Value #C": ("Loss", PLAIN),
    }
    return [
        graph("Age of the last checkpoint", SECONDS,
              "Upper limit of the training time that a restart replays, or that a crash loses without "
              "a journal. Also grows while a trainer is idle.",
              Query(f"time() - {latest(WRITTEN)}", NAME), limits=((3600, YELLOW),), width=6,
              calcs=("max", "lastNotNull")),
        graph("Checkpoints", PER_MINUTE, "Checkpoints by outcome: written or failed.",
              Query(per_minute("braid_checkpoints_total", "outcome"), NAME + " {{outcome}}"),
              width=6, calcs=("mean", "max")),
        graph("Time to write a checkpoint, p99", SECONDS,
              "Time until a checkpoint is durable. Training continues during it.",
              Query(q.quantile(0.99, duration, q.TRAINER, by=TRAINER), NAME), width=6,
              calcs=("mean", "max")),
        graph("Pause for a checkpoint, p99", SECONDS,
              "Time that operations wait while the state is copied for a checkpoint.",
              Query(q.quantile(0.99, pause, q.TRAINER, by=TRAINER), NAME), width=6,
              calcs=("mean", "max")),
        graph("Wait for the journal, p99", SECONDS,
              "Time that replies wait for the disk after their operations have been applied.",
              Query(q.quantile(0.99, "braid_journal_wait_seconds", q.TRAINER, by=TRAINER), NAME),
              width=8, calcs=("mean", "max")),
        graph("Journal", BYTES_PER_SECOND, "Bytes written to the journals of trainers.",
              Query(q.total(q.rate("braid_journal_written_bytes_total", q.TRAINER), *TRAINER), NAME),
              width=8, calcs=("mean", "max")),
        graph("Size of the journal", BYTES, "Disk space of the journals, including their histories.",
              Query(latest("braid_journal_bytes"), NAME), width=8, calcs=("max", "lastNotNull")),
        listing("Trainers", "Trainers of each server.", columns,
                Query(f"{latest(WRITTEN)} * 1000"),
                Query(latest("braid_training_steps_total")),
                Query(latest("braid_training_loss")), width=24, height=6),
    ]  # fmt: skip
