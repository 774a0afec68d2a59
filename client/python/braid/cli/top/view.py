"""Figures of `braid top`: the state of a sample, and rates over the time since the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from braid.cli.top import metrics_port
from braid.cli.top.samples import Counters, Sample

if TYPE_CHECKING:
    from braid.jobs import JobInfo
    from braid.results import Device, TrainerInfo

_Named = TypeVar("_Named", "Device", "TrainerInfo")
_ZERO = Counters(0, 0, 0.0, 0.0, 0, 0)


@dataclass(frozen=True)
class DeviceView:
    """Device slot. None: unknown.

    utilization: share of the time that it was busy, from 0 to 1.
    phases: share of the time by phase, the largest first.
    memory_bytes, memory_total_bytes: of the metrics port.
    """

    device: str
    hardware: str
    utilization: float | None
    phases: dict[str, float]
    rows_per_second: float | None
    memory_bytes: float | None
    memory_total_bytes: float | None


@dataclass(frozen=True)
class ModelView:
    """Served model, over all its versions. None: unknown, or no requests.

    mean_seconds, queue_seconds: mean time of a request, and of its wait in the queue.
    rows_per_batch: mean.
    p50_seconds, p99_seconds, queue_rows: of the metrics port.
    """

    model: str
    versions: list[str]
    requests_per_second: float | None
    failures_per_second: float | None
    rows_per_second: float | None
    rows_per_batch: float | None
    mean_seconds: float | None
    p50_seconds: float | None
    p99_seconds: float | None
    queue_seconds: float | None
    queue_rows: int | None


@dataclass(frozen=True)
class TrainerView:
    """Trainer. loss: of the metrics port; None: unknown. memory_bytes: over all devices."""

    trainer: str
    model: str
    step: int
    steps_per_second: float | None
    loss: float | None
    lr: float
    memory_bytes: int
    devices: list[str]


@dataclass(frozen=True)
class JobView:
    """Job. progress: share of the rows, from 0 to 1. seconds_left: None unless it runs."""

    job: str
    kind: str
    model: str
    state: str
    progress: float | None
    step: int
    loss: float | None
    rows_per_second: float
    seconds_left: float | None


@dataclass(frozen=True)
class View:
    """All that `braid top` shows. seconds: between the samples; None: no rates yet."""

    uptime_seconds: float
    seconds: float | None
    devices: list[DeviceView]
    models: list[ModelView]
    trainers: list[TrainerView]
    jobs: list[JobView]
    has_metrics: bool
    notes: dict[str, str]


def make(before: Sample | None, now: Sample) -> View:
    """Returns the figures of `now`. Without an earlier sample of the same server, there are no rates."""
    if before is not None and (now.time <= before.time or now.uptime < before.uptime):
        before = None  # The server has restarted, and its counters too.
    return View(
        uptime_seconds=now.uptime,
        seconds=now.time - before.time if before else None,
        devices=[_device(before, now, device) for device in now.devices],
        models=[_model(before, now, name) for name in sorted({name for name, _ in now.models})],
        trainers=[_trainer(before, now, trainer) for trainer in now.trainers],
        jobs=[_job(job) for job in now.jobs],
        has_metrics=now.metrics is not None,
        notes=now.notes,
    )


def _device(before: Sample | None, now: Sample, device: Device) -> DeviceView:
    old = _find(before.devices if before else (), device.name)
    seconds = device.uptime_seconds - old.uptime_seconds if old else 0.0
    phases: dict[str, float] = {}
    if old is not None and seconds > 0:
        busy = {
            phase: max(total - old.busy_seconds.get(phase, 0.0), 0.0) / seconds
            for phase, total in device.busy_seconds.items()
        }
        phases = {
            phase: share
            for phase, share in sorted(busy.items(), key=lambda each: (-each[1], each[0]))
            if share > 0
        }
    used, total = (now.metrics.memory if now.metrics else {}).get(device.name, (None, None))
    return DeviceView(
        device=device.name,
        hardware=device.hardware,
        # A phase counts when it ends, so a short interval may have more than its own length.
        utilization=min(sum(phases.values()), 1.0) if old is not None and seconds > 0 else None,
        phases=phases,
        rows_per_second=_rate(device.samples, old.samples if old else None, seconds),
        memory_bytes=used,
        memory_total_bytes=total,
    )


def _model(before: Sample | None, now: Sample, name: str) -> ModelView:
    versions = sorted((v for model, v in now.models if model == name), key=_version_order)
    seconds = now.time - before.time if before else 0.0
    successes = failures = rows = batches = 0
    total = queue = 0.0
    for version in versions if before else ():
        new = now.models[name, version]
        old = before.models.get((name, version), _ZERO) if before else _ZERO
        if new.successes + new.failures < old.successes + old.failures:
            old = _ZERO  # The version was loaded again.
        successes += new.successes - old.successes
        failures += new.failures - old.failures
        total += new.seconds - old.seconds
        queue += new.queue_seconds - old.queue_seconds
        rows += new.rows - old.rows
        batches += new.batches - old.batches
    return ModelView(
        model=name,
        versions=versions,
        requests_per_second=(successes + failures) / seconds if seconds > 0 else None,
        failures_per_second=failures / seconds if seconds > 0 else None,
        rows_per_second=rows / seconds if seconds > 0 else None,
        rows_per_batch=rows / batches if batches > 0 else None,
        mean_seconds=total / successes if successes > 0 else None,
        p50_seconds=_quantile(0.5, before, now, name),
        p99_seconds=_quantile(0.99, before, now, name),
        queue_seconds=queue / successes if successes > 0 else None,
        queue_rows=(now.metrics.queue_rows if now.metrics else {}).get(name),
    )


def _trainer(before: Sample | None, now: Sample, trainer: TrainerInfo) -> TrainerView:
    old = _find(before.trainers if before else (), trainer.name)
    # After a restore, the step may be smaller, and another trainer may have the name.
    same = old is not None and old.id == trainer.id and old.step <= trainer.step
    seconds = now.time - before.time if before else 0.0
    return TrainerView(
        trainer=trainer.name,
        model=trainer.model,
        step=trainer.step,
        steps_per_second=_rate(trainer.step, old.step if old and same else None, seconds),
        loss=(now.metrics.losses if now.metrics else {}).get(trainer.name),
        lr=trainer.lr,
        memory_bytes=sum(memory.current_bytes for memory in trainer.memory),
        devices=list(trainer.devices),
    )


def _job(job: JobInfo) -> JobView:
    progress = job.progress
    rate = progress.rows_per_second
    runs = job.state == "RUNNING" and rate > 0 and progress.total_rows > 0
    return JobView(
        job=job.id,
        kind=job.kind,
        model=job.model,
        state=job.state,
        progress=progress.rows / progress.total_rows if progress.total_rows else None,
        step=progress.step,
        loss=progress.loss,
        rows_per_second=rate,
        seconds_left=(progress.total_rows - progress.rows) / rate if runs else None,
    )


def _find(each: Iterable[_Named], name: str) -> _Named | None:
    return next((found for found in each if found.name == name), None)


def _rate(new: int, old: int | None, seconds: float) -> float | None:
    return (new - old) / seconds if old is not None and seconds > 0 else None


def _quantile(share: float, before: Sample | None, now: Sample, model: str) -> float | None:
    if before is None or before.metrics is None or now.metrics is None:
        return None
    counts = now.metrics.latencies.get(model)
    if counts is None:
        return None
    return metrics_port.quantile(share, before.metrics.latencies.get(model, {}), counts)


def _version_order(version: str) -> tuple[int, str]:
    return (int(version) if version.isdecimal() else 0, version)
