"""Dashboard of jobs: progress of the running ones, and the queue, preemptions and failures."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard

from braid_dashboards import queries as q
from braid_dashboards.layout import build
from braid_dashboards.panels import (
    PLAIN, RATIO, RED, ROWS_PER_SECOND, SECONDS, STEPS_PER_SECOND, YELLOW, Query, graph, listing,
    number,
)  # fmt: skip

JOB = ("instance", "job_id", "kind", "model")
NAME = "{{job_id}} {{model}}"
DURATION = "braid_job_duration_seconds"
# Limit of the alert BraidJobStuck.
STUCK_SECONDS = 900
# Jobs start and end too rarely for the interval of the other graphs.
HOUR = "[1h]"


def dashboard() -> Dashboard:
    return build(
        "braid-jobs",
        "Braid / Jobs",
        "Running jobs: progress, speed and loss. All jobs: time in the queue, preemptions, "
        "durations and failures.",
        {
            "Now": now(),
            "Running jobs": running(),
            "All jobs": all_jobs(),
        },
    )


def latest(metric: str) -> str:
    """Expression of a gauge for each running job."""
    return q.highest(q.select(f"braid_job_{metric}"), *JOB)


def time_without_progress() -> str:
    return f"time() - {latest('last_progress_timestamp_seconds')}"


def time_left() -> str:
    rows = f"({latest('planned_rows')} - {latest('done_rows')})"
    return f"{rows} / ({latest('rows_per_second')} > 0)"


def in_state(state: str) -> Query:
    return Query(q.total(q.select("braid_jobs", f'state="{state}"')))


def per_hour(counter: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Increase of a counter in the last hour."""
    return q.total(f"increase({q.select(counter, *matchers)}{HOUR})", *by)


def jobs_per_hour(counter: str, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Increase of a counter of jobs in the last hour, without the fractions that increase()
    extrapolates."""
    return f"round({per_hour(counter, *matchers, by=by)})"


def quantile_of_hour(level: float, histogram: str) -> str:
    buckets = per_hour(f"{histogram}_bucket", by=("le", "kind"))
    return q.defined(f"histogram_quantile({level}, {buckets})")


def now() -> list:
    longest = f"time() - {q.lowest(q.select('braid_job_last_progress_timestamp_seconds'))}"
    return [
        number("Running", PLAIN, "Jobs that run. The limit is --max_running_jobs.",
               in_state("running"), width=3),
        number("Queued", PLAIN, "Jobs that wait for their turn.", in_state("queued"), width=3),
        number("Paused", PLAIN, "Jobs that wait until a user resumes them.", in_state("paused"),
               width=3),
        number("Succeeded", PLAIN, "Jobs that succeeded in the last hour.",
               Query(jobs_per_hour(f"{DURATION}_count", 'state="succeeded"')), width=3),
        number("Failed", PLAIN, "Jobs that failed in the last hour.",
               Query(jobs_per_hour("braid_job_failures_total")), limits=((1, RED),), width=3),
        number("Rows", ROWS_PER_SECOND, "Rows of all jobs.",
               Query(q.total(q.rate("braid_job_rows_total"))), width=3),
        number("Steps", STEPS_PER_SECOND, "Steps of all training jobs.",
               Query(q.total(q.rate("braid_job_steps_total"))), width=3),
        number("Without progress", SECONDS,
               "Longest time since a running job last made progress: a row, a step, a batch of an "
               "evaluation, or a part of its data that was prepared.",
               Query(longest), limits=((STUCK_SECONDS / 3, YELLOW), (STUCK_SECONDS, RED)), width=3),
    ]  # fmt: skip


def running() -> list:
    columns = {
        "job_id": ("Job", "string"),
        "kind": ("Kind", "string"),
        "model": ("Model", "string"),
        "instance": ("Server", "string"),
        "Value #A": ("Progress", RATIO),
        "Value #B": ("Speed", ROWS_PER_SECOND),
        "Value #C": ("Loss", PLAIN),
        "Value #D": ("Running for", SECONDS),
        "Value #E": ("Time left", SECONDS),
        "Value #F": ("Without progress", SECONDS),
    }
    started = latest("started_timestamp_seconds")
    waited = q.rate("braid_job_data_wait_seconds_total")
    return [
        listing("Running jobs", "Jobs that run on each server. The time left assumes the current "
                "speed.", columns,
                Query(latest("progress_ratio")),
                Query(latest("rows_per_second")),
                Query(latest("loss")),
                Query(f"time() - {started}"),
                Query(time_left()),
                Query(time_without_progress()), width=24, height=6),
        graph("Progress", RATIO, "Share of the rows that are done.",
              Query(latest("progress_ratio"), NAME), most=1, width=6, calcs=("lastNotNull",)),
        graph("Rows per second", ROWS_PER_SECOND, "Speed over the last seconds.",
              Query(latest("rows_per_second"), NAME), width=6, calcs=("mean", "lastNotNull")),
        graph("Steps per second", STEPS_PER_SECOND, "Speed of training jobs over the last seconds.",
              Query(latest("steps_per_second"), NAME), width=6, calcs=("mean", "lastNotNull")),
        graph("Loss", PLAIN, "Loss of the last step of a training job.",
              Query(latest("loss"), NAME), width=6, signed=True, calcs=("mean", "lastNotNull")),
        graph("Time left", SECONDS, "Rows that are left, divided by the current speed. Excludes "
              "evaluations and the writing of results.",
              Query(time_left(), NAME), width=6, calcs=("lastNotNull",)),
        graph("Waiting for data", RATIO,
              "Share of the time in which a job's devices wait for its data. If it is large, the "
              "disk or the decoding of files limits the job.",
              Query(q.total(waited, *JOB), NAME), most=1, width=6, calcs=("mean", "lastNotNull")),
        graph("Time without progress", SECONDS,
              "Time since a job last did a row or step, evaluated a batch, or prepared a part of "
              "its data. The alert BraidJobStuck fires at the line.",
              Query(time_without_progress(), NAME), limits=((STUCK_SECONDS, RED),), width=6,
              calcs=("max",)),
        graph("Rows left out", PLAIN, "Unreadable rows that a job left out.",
              Query(latest("skipped_rows"), NAME), width=6, calcs=("lastNotNull",)),
    ]  # fmt: skip


def all_jobs() -> list:
    queued = "braid_job_queue_duration_seconds"
    unfinished = q.select("braid_jobs", 'state=~"queued|running|paused"')
    by_kind = "{{kind}}"
    return [
        graph("Unfinished jobs", PLAIN, "Jobs that run, wait or are paused.",
              Query(q.total(unfinished, "state"), "{{state}}"), stacked=True, width=6,
              calcs=("max", "lastNotNull")),
        graph("Time in the queue", SECONDS,
              "Time that jobs waited in the queue, for jobs that started in the last hour: p50 "
              "and p90.",
              Query(quantile_of_hour(0.5, queued), by_kind + " p50"),
              Query(quantile_of_hour(0.9, queued), by_kind + " p90"), width=6,
              calcs=("max", "lastNotNull")),
        graph("Preemptions and pauses per hour", PLAIN,
              "Jobs that stopped for one of higher priority, and jobs that users paused, in the "
              "last hour.",
              Query(jobs_per_hour("braid_job_preemptions_total", by=("kind",)),
                    by_kind + " preempted"),
              Query(jobs_per_hour("braid_job_pauses_total", by=("kind",)), by_kind + " paused"),
              width=6, most=1, calcs=("max", "lastNotNull")),
        graph("Rows by kind", ROWS_PER_SECOND, "Rows of all jobs, by kind.",
              Query(q.total(q.rate("braid_job_rows_total"), "kind"), by_kind), stacked=True,
              width=6, calcs=("mean", "max")),
        graph("Ended jobs per hour", PLAIN, "Jobs that ended in the last hour, by state. Jobs that "
              "never started do not count.",
              Query(jobs_per_hour(f"{DURATION}_count", by=("state",)), "{{state}}"),
              calcs=("lastNotNull",)),
        graph("Duration of ended jobs", SECONDS,
              "Time from the first start of a job to its end, for jobs that ended in the last "
              "hour: p50 and p90.",
              Query(quantile_of_hour(0.5, DURATION), by_kind + " p50"),
              Query(quantile_of_hour(0.9, DURATION), by_kind + " p90"),
              calcs=("max", "lastNotNull")),
        graph("Failures per hour by code", PLAIN,
              "Jobs that failed in the last hour, by code of the error. INVALID_ARGUMENT, "
              "NOT_FOUND and FAILED_PRECONDITION are errors of the spec or the data.",
              Query(jobs_per_hour("braid_job_failures_total", by=("kind", "code")) + " > 0",
                    by_kind + " {{code}}"), calcs=("lastNotNull",)),
    ]  # fmt: skip
