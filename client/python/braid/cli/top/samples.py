"""Samples of a server's state and counters, taken by its calls and from its metrics port."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from braid import errors
from braid._protocol import INFERENCE
from braid.cli.top import metrics_port
from braid.cli.top.metrics_port import Metrics

if TYPE_CHECKING:
    import braid
    from braid.jobs import JobInfo
    from braid.results import Device, TrainerInfo

T = TypeVar("T")
_ACTIVE = ("RUNNING", "QUEUED", "PAUSED")
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
_MAX_ACTIVE_JOBS = 100  # of each state
_MAX_ENDED_JOBS = 10
# Errors that concern the server, not one kind of call.
_NO_SERVER = (
    errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled, errors.Unauthenticated,
)  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """Counters of a served model version since it was loaded. Seconds are sums over requests."""

    successes: int
    failures: int
    seconds: float
    queue_seconds: float
    rows: int
    batches: int


@dataclass(frozen=True)
class Sample:
    """State of a server at one time.

    time: of the monotonic clock. uptime: seconds since the server started.
    models: counters by name and version.
    jobs: those that run, then those that wait, then those that are paused, each in the order in
        which they start; then those that have ended, the newest first.
    metrics: None without the metrics port.
    notes: by section, why it is not available.
    """

    time: float
    uptime: float
    devices: Sequence[Device]
    models: dict[tuple[str, str], Counters]
    trainers: Sequence[TrainerInfo]
    jobs: Sequence[JobInfo]
    metrics: Metrics | None = None
    notes: dict[str, str] = field(default_factory=dict)


def take(client: braid.Client, metrics: str | None, timeout: float) -> Sample:
    """Takes a sample.

    metrics: address of the metrics port; None: do not read it. timeout: seconds of each call.
    Raises BraidError if the server does not answer, or does not know the caller. If it rejects only
    calls of one kind, `notes` has the reason.
    """
    notes: dict[str, str] = {}

    def section(name: str, call: Callable[[], T], empty: T) -> T:
        try:
            return call()
        except _NO_SERVER:
            raise
        except errors.BraidError as error:
            notes[name] = error.message
            return empty

    devices = section("devices", lambda: client.devices(timeout=timeout), [])
    now = time.monotonic()
    read = None
    if metrics is not None:
        try:
            read = metrics_port.read(metrics, timeout)
        except OSError as error:
            notes["metrics"] = str(error)
    return Sample(
        time=now,
        uptime=devices[0].uptime_seconds if devices else 0.0,
        devices=devices,
        models=section("models", lambda: _models(client, timeout), {}),
        trainers=section("trainers", lambda: client.trainers(timeout=timeout), []),
        jobs=section("jobs", lambda: _jobs(client, timeout), []),
        metrics=read,
        notes=notes,
    )


def _models(client: braid.Client, timeout: float) -> dict[tuple[str, str], Counters]:
    method = INFERENCE["ModelStatistics"]
    reply = client._channel.call(method, method.request(), timeout)
    return {(each.name, each.version): _counters(each) for each in reply.model_stats}


def _counters(proto: Any) -> Counters:
    stats = proto.inference_stats
    return Counters(
        successes=stats.success.count,
        failures=stats.fail.count,
        seconds=stats.success.ns / 1e9,
        queue_seconds=stats.queue.ns / 1e9,
        rows=proto.inference_count,
        batches=proto.execution_count,
    )


def _jobs(client: braid.Client, timeout: float) -> list[JobInfo]:
    jobs: list[JobInfo] = []
    for state in _ACTIVE:
        active = client.jobs.list_jobs(
            states=[state], oldest_first=True, limit=_MAX_ACTIVE_JOBS, timeout=timeout
        )
        # In the order in which they start.
        jobs += sorted(active, key=lambda job: -job.spec.get("priority", 0))
    return jobs + client.jobs.list_jobs(states=_ENDED, limit=_MAX_ENDED_JOBS, timeout=timeout)
