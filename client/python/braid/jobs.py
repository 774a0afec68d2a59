"""Jobs: the server trains and scores over its datasets without a connected client."""

from __future__ import annotations

import asyncio
import math
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

import numpy as np

from braid import _job_specs, _protocol, errors
from braid._channel import Channel, remaining
from braid._protocol import JOBS
from braid._specs import LossLike

_STATES = {
    value.name.removeprefix("JOB_STATE_"): value.number
    for value in _protocol.message("braid.v1.Job").DESCRIPTOR.fields_by_name["state"]
    .enum_type.values[1:]
}  # fmt: skip
_STATE_NAMES = {number: name for name, number in _STATES.items()}
_LEVELS = {0: "info", 1: "info", 2: "warning", 3: "error"}
_MAX_PAGE_SIZE = 1000
_POLL_SECONDS = 1.0
ENDED_STATES = ("SUCCEEDED", "FAILED", "CANCELLED")


class Series(NamedTuple):
    """Values of a metric: `values` float64 [N] at `steps` int64 [N], ascending."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class JobProgress:
    """Position in a job.

    rows, total_rows: rows done, in a training job over all epochs; 0 of 0 before the first start.
    step, total_steps, epoch, epochs: of a training job; epoch counts from 1. If early stopping ends
        the job, the totals become what was done, so that an ended job is complete.
    loss: of the last step of a training job; None before the first.
    rows_per_second: mean of the last seconds; 0 unless the job runs.
    wait_seconds: time that the devices waited for data, since the job last started.
    durable_rows: rows that a crash of the server cannot undo.
    skipped_rows: unreadable rows among `rows` that were left out ("on_unreadable": "skip"); a row
        counts in each epoch.
    """

    rows: int = 0
    total_rows: int = 0
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    epochs: int = 0
    loss: float | None = None
    rows_per_second: float = 0.0
    wait_seconds: float = 0.0
    durable_rows: int = 0
    skipped_rows: int = 0


@dataclass(frozen=True)
class JobTransition:
    """Change of a job's state. before: None for the first one. time: UTC, of the server's clock."""

    number: int
    time: datetime
    before: str | None
    state: str
    reason: str


@dataclass(frozen=True)
class JobEvent:
    """Change of a job: either its state or its progress.

    number: of the last transition up to here; pass it to `Job.watch` to continue.
    """

    number: int
    transition: JobTransition | None = None
    progress: JobProgress | None = None


@dataclass(frozen=True)
class JobLogLine:
    """Line of a job's log. level: "info", "warning" or "error"."""

    number: int
    time: datetime
    level: str
    text: str


@dataclass(frozen=True)
class JobResult:
    """Result of a job that has succeeded.

    version: version that a training job published; None: it published nothing.
    metrics: of the evaluation of a training job's weights, by name; without evaluation, the loss of
        the last step.
    step: steps before a training job's weights.
    output, rows: path on the server and number of rows of an inference job's output.
    skipped_rows: rows that were left out, because they are unreadable; in a training job over all
        epochs.
    """

    version: int | None
    metrics: dict[str, float]
    step: int
    output: str
    rows: int
    skipped_rows: int = 0


@dataclass(frozen=True)
class JobInfo:
    """State of a job on the server.

    spec: dict for `Jobs.submit`, without loss modules.
    state: "QUEUED", "RUNNING", "PAUSED", "SUCCEEDED", "FAILED" or "CANCELLED".
    reason: of the last change of state; for "FAILED", the error.
    identity: caller that submitted the job; empty if the server has no access control.
    created, started, ended: times in UTC; None: not yet.
    attempts: times that the job started to run; more than 1 after pauses, preemptions and restarts
        of the server.
    result: None unless the job has succeeded.
    cancel_requested: the job ends after its current step.
    pause_requested: the job stops after its current step, and becomes "PAUSED".
    trainer: name of a training job's trainer, which exists once the job has run.
    """

    id: str
    spec: dict[str, Any]
    state: str
    reason: str
    identity: str
    created: datetime | None
    started: datetime | None
    ended: datetime | None
    attempts: int
    progress: JobProgress
    result: JobResult | None
    cancel_requested: bool
    trainer: str
    pause_requested: bool = False

    @property
    def kind(self) -> str:
        """Kind of the job, "train" or "infer"."""
        return str(self.spec.get("kind", ""))

    @property
    def model(self) -> str:
        """Model that the job trains or runs."""
        return str(self.spec.get("model", ""))

    @property
    def has_ended(self) -> bool:
        """True if the state never changes again."""
        return self.state in ENDED_STATES


class JobError(Exception):
    """A job failed or was cancelled. info: its state."""

    def __init__(self, info: JobInfo) -> None:
        super().__init__(f"job {info.id!r} {info.state}: {info.reason}")
        self.info = info


class Jobs:
    """Jobs of a server, from `Client.jobs`. Thread-safe.

    Paths are those of the server: relative to its first --data_root, and for outputs to
    --output_root. `timeout` is in seconds and includes retries; None means the client's timeout.
    """

    def __init__(self, channel: Channel) -> None:
        """Internal: use `Client.jobs`."""
        self._channel = channel

    def train(
        self,
        model: str,
        *,
        data: Mapping[str, Any],
        optimizer: str | Mapping[str, Any],
        batch_size: int,
        loss: LossLike | Sequence[LossLike] | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        version: int | None = None,
        from_trainer: str | None = None,
        from_checkpoint: str | None = None,
        evaluate: Mapping[str, Any] | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        publish: str | None = None,
        best_metric: str | None = None,
        early_stopping: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
        id: str | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> Job:
        """Submits a job that trains `model`, and returns it without waiting for its end.

        data: dict with "path", "inputs" and "targets": column of the dataset by name of the input
            or target, or a dict with "column", "dtype", "scale" and "decode" (see `infer`), which
            may be random if "evaluation_decode" is not. Optional: "on_unreadable", "split":
            {"validation": 0.1}, "weights": a column.
        optimizer, loss: as for `Client.create_trainer`.
        batch_size: rows of a step, over all devices.
        epochs, steps: length of the training; one of them.
        version, from_trainer, from_checkpoint: the initial weights; None: the newest version.
        evaluate: dict with "path" (default: the validation split), "every" ("1 epoch" or
            "500 steps"), "metrics", "k" and "batch_size".
        shuffle: new order of the rows in each epoch, by `seed` and epoch.
        drop_last: leave out the last batch of an epoch if it is smaller.
        publish: "last" or "best": weights that become the next version; None: none.
        best_metric: metric that decides what is best; None: "loss".
        early_stopping: dict with "patience": evaluations in a row without improvement after which
            the training ends. Optional: "metric" (default: best_metric), "mode" ("min" or "max";
            default: "max" for "accuracy", "top_k", "binary_accuracy" and "iou"), "min_delta"
            (default: 0), which an improvement must exceed.
        tags: words for `list_jobs`.
        priority: jobs of higher priority start first, and preempt running jobs of lower priority.
        id: ID of the job; None: a new one.
        options: other arguments of `Client.create_trainer`, such as `seed` and `schedule`.
        Raises ValueError for an unknown key, and InvalidArgument if the spec does not fit the model
        or the data.
        """
        spec = {
            "kind": "train",
            "model": model,
            "version": version,
            "from_trainer": from_trainer,
            "from_checkpoint": from_checkpoint,
            "data": data,
            "evaluate": evaluate,
            "loss": loss,
            "optimizer": optimizer,
            "epochs": epochs,
            "steps": steps,
            "batch_size": batch_size,
            "shuffle": None if shuffle else False,
            "drop_last": drop_last or None,
            "publish": publish,
            "best_metric": best_metric,
            "early_stopping": early_stopping,
            "tags": list(tags),
            "priority": priority or None,
            **options,
        }
        return self.submit(spec, id=id, timeout=timeout)

    def infer(
        self,
        model: str,
        *,
        data: Mapping[str, Any],
        output: Mapping[str, Any],
        version: int | None = None,
        batch_size: int | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
        id: str | None = None,
        timeout: float | None = None,
    ) -> Job:
        """Submits a job that runs `model` on all rows of a dataset, and returns it without waiting.

        data: dict with "path" and "inputs": column of the dataset by name of the input, or a dict
            with "column", "dtype", "scale" and "decode": how the column's images or texts become
            the tensor, such as {"image": {"transforms": [{"resize": 256}, "to_float"]}}. Optional:
            "on_unreadable": "fail" or "skip", for rows that cannot be decoded.
        output: dict with "path", which ends in ".parquet", ".npy", ".jsonl" or "/". Optional:
            "format", "keep": columns to copy, "outputs": column by name of the model's output,
            "overwrite".
        version: version of the model; None: the version that is served when the job starts.
        batch_size: maximum rows of a forward pass; None: chosen by measuring.
        tags, priority, id: as for `train`.
        """
        spec = {
            "kind": "infer",
            "model": model,
            "version": version,
            "data": data,
            "output": output,
            "batch_size": batch_size,
            "tags": list(tags),
            "priority": priority or None,
        }
        return self.submit(spec, id=id, timeout=timeout)

    def submit(
        self, spec: Mapping[str, Any], *, id: str | None = None, timeout: float | None = None
    ) -> Job:
        """Submits a job by its spec, a dict with the keys of a YAML spec.

        id: ID of the job; None: a new one. If a job with this ID and an equal spec exists, returns
            it. Raises AlreadyExists if its spec differs.
        Returns when the job is on the server's disk.
        """
        method = JOBS["SubmitJob"]
        # The server recognizes a retry by the ID.
        request = method.request(id=id or uuid.uuid4().hex[:16], spec=_job_specs.to_proto(spec))
        reply = self._channel.call(method, request, timeout)
        return Job(self._channel, reply.job.id)

    def check(self, spec: Mapping[str, Any], *, timeout: float | None = None) -> JobInfo:
        """Checks a spec on the server, as `submit` does, without submitting a job.

        The result has the totals in `progress`.
        """
        method = JOBS["SubmitJob"]
        request = method.request(spec=_job_specs.to_proto(spec), dry_run=True)
        return _info(self._channel.call(method, request, timeout).job)

    def get(self, id: str, *, timeout: float | None = None) -> Job:
        """Returns an existing job. Raises NotFound if there is none."""
        job = Job(self._channel, id)
        job.info(timeout=timeout)
        return job

    def list_jobs(
        self,
        *,
        states: Sequence[str] = (),
        model: str | None = None,
        tag: str | None = None,
        identity: str | None = None,
        oldest_first: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> list[JobInfo]:
        """Lists jobs, the newest first.

        states, model, tag, identity: filters; empty or None: all.
        limit: maximum number of jobs; None: all.
        Raises ValueError for an unknown state.
        """
        for state in states:
            if state not in _STATES:
                raise ValueError(f"states: {state!r} (expected one of {', '.join(_STATES)})")
        method = JOBS["ListJobs"]
        request = method.request(
            states=[_STATES[state] for state in states],
            model=model or "",
            tag=tag or "",
            identity=identity or "",
            oldest_first=oldest_first,
            # Tokens require the same size for all pages.
            page_size=_MAX_PAGE_SIZE if limit is None else min(max(limit, 1), _MAX_PAGE_SIZE),
        )
        deadline = self._channel.deadline(timeout)
        jobs: list[JobInfo] = []
        while limit is None or len(jobs) < limit:
            reply = self._channel.call(method, request, remaining(deadline))
            jobs += [_info(job) for job in reply.jobs]
            request.page_token = reply.next_page_token
            if not request.page_token:
                break
        return jobs[:limit]


class Job:
    """Handle on a job of the server. Thread-safe.

    The job continues without the handle, also after the client has ended. Methods that end in
    `_async` do not block the event loop: they call the server on a thread of its default executor.
    Cancelling their task does not withdraw the request.
    """

    def __init__(self, channel: Channel, id: str) -> None:
        """Internal: use the methods of `Client.jobs`."""
        self._channel = channel
        self._id = id

    def __repr__(self) -> str:
        return f"<braid.Job {self._id!r}>"

    @property
    def id(self) -> str:
        """ID of the job."""
        return self._id

    def info(self, *, timeout: float | None = None) -> JobInfo:
        """Returns the current state of the job."""
        method = JOBS["GetJob"]
        return _info(self._channel.call(method, method.request(id=self._id), timeout).job)

    async def info_async(self, *, timeout: float | None = None) -> JobInfo:
        """Returns the state like `info`, without blocking the event loop."""
        return await asyncio.to_thread(self.info, timeout=timeout)

    def wait(self, *, timeout: float | None = None, progress: bool | None = None) -> JobInfo:
        """Waits until the job has succeeded, also across restarts of the server. Returns its state.

        timeout: maximum seconds; None: no limit. Raises DeadlineExceeded afterwards.
        progress: show a progress bar on stderr; None: if it is a terminal.
        Raises JobError if the job failed or was cancelled.
        """
        from braid._job_progress import ProgressBar

        show = sys.stderr.isatty() if progress is None else progress
        deadline = None if timeout is None else time.monotonic() + timeout
        bar = ProgressBar(self._id) if show else None
        try:
            for event in self._watch(0, deadline):
                if bar is not None:
                    bar.update(event)
        finally:
            if bar is not None:
                bar.close()
        method = JOBS["GetJob"]
        request = method.request(id=self._id)
        reply = self._channel.call(method, request, remaining(deadline), attempts=math.inf)
        return _check_succeeded(_info(reply.job))

    async def wait_async(self, *, timeout: float | None = None) -> JobInfo:
        """Waits like `wait`, without blocking the event loop and without a progress bar.

        Asks for the state once a second. Cancelling the task leaves the job alone.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                info = await self.info_async()
            except errors.Unavailable as failure:
                self._channel.outage.on_wait(failure)
            else:
                if info.has_ended:
                    return _check_succeeded(info)
            if time.monotonic() + _POLL_SECONDS >= deadline:
                raise errors.DeadlineExceeded(f"job {self._id!r}: has not ended after {timeout} s")
            await asyncio.sleep(_POLL_SECONDS)

    def watch(self, *, after: int = 0, timeout: float | None = None) -> Iterator[JobEvent]:
        """Yields the changes of the job until it has ended, also over restarts of the server.

        after: number of the last event that was seen; 0: from the start.
        timeout: maximum seconds; None: no limit. Raises DeadlineExceeded afterwards.
        """
        return self._watch(after, None if timeout is None else time.monotonic() + timeout)

    def _watch(self, after: int, deadline: float | None) -> Iterator[JobEvent]:
        method = JOBS["WatchJob"]
        failures = 0
        while True:
            request = method.request(id=self._id, after=after)
            try:
                for reply in self._channel.receive(method, request, remaining(deadline)):
                    failures = 0
                    after = reply.event
                    yield _event(reply)
                return
            except errors.DeadlineExceeded:
                raise errors.DeadlineExceeded(f"job {self._id!r}: did not end in time") from None
            except errors.Unavailable as failure:
                failures += 1
                backoff = self._channel.retry.backoff(failures)
                if deadline is not None and time.monotonic() + backoff >= deadline:
                    raise errors.DeadlineExceeded(
                        f"job {self._id!r}: the server is unreachable: {failure.message}"
                    ) from None
                self._channel.outage.on_wait(failure)
                time.sleep(backoff)

    def metrics(
        self, names: Sequence[str] = (), *, first_step: int = 0, timeout: float | None = None
    ) -> dict[str, Series]:
        """Returns the values of metrics by step: {"loss": Series(steps, values)}.

        names: None or empty: all. A training job has "loss" and "lr" of each step, "gradient_norm"
            with clipping by norm, and "evaluation/loss", "evaluation/accuracy" and the like.
        first_step: return values of this step and later ones.
        """
        if isinstance(names, str):
            raise ValueError(f"names: {names!r} (expected a list of names, such as [{names!r}])")
        method = JOBS["GetJobMetrics"]
        deadline = self._channel.deadline(timeout)
        request = method.request(id=self._id, names=names, first_step=first_step)
        steps: dict[str, list[np.ndarray]] = {}
        values: dict[str, list[np.ndarray]] = {}
        while True:
            reply = self._channel.call(method, request, remaining(deadline))
            for series in reply.series:
                steps.setdefault(series.name, []).append(np.array(series.steps, np.int64))
                values.setdefault(series.name, []).append(np.array(series.values, np.float64))
            if not reply.next_step:
                break
            request.first_step = reply.next_step
        return {
            name: Series(np.concatenate(steps[name]), np.concatenate(values[name]))
            for name in sorted(steps)
        }

    def logs(self, *, after: int = 0, timeout: float | None = None) -> list[JobLogLine]:
        """Returns the lines of the job's log, the oldest first. after: number of a line."""
        method = JOBS["GetJobLogs"]
        deadline = self._channel.deadline(timeout)
        lines: list[JobLogLine] = []
        while True:
            request = method.request(id=self._id, after=after)
            reply = self._channel.call(method, request, remaining(deadline))
            if not reply.lines:
                return lines
            lines += [
                JobLogLine(line.number, _time(line.time), _LEVELS[line.level], line.text)
                for line in reply.lines
            ]
            after = lines[-1].number

    def pause(self, *, timeout: float | None = None) -> JobInfo:
        """Pauses the job; a running one stops after its current step and saves its progress.

        The job stays paused until `resume` or `cancel`, also over restarts of the server. No-op if
        it is paused. Raises FailedPrecondition if it has ended.
        """
        method = JOBS["PauseJob"]
        return _info(self._channel.call(method, method.request(id=self._id), timeout).job)

    async def pause_async(self, *, timeout: float | None = None) -> JobInfo:
        """Pauses the job like `pause`, without blocking the event loop."""
        return await asyncio.to_thread(self.pause, timeout=timeout)

    def resume(self, *, timeout: float | None = None) -> JobInfo:
        """Returns a paused job to the queue. It continues where it has stopped.

        No-op if the job is not paused. Raises FailedPrecondition if it has ended.
        """
        method = JOBS["ResumeJob"]
        return _info(self._channel.call(method, method.request(id=self._id), timeout).job)

    async def resume_async(self, *, timeout: float | None = None) -> JobInfo:
        """Returns the job to the queue like `resume`, without blocking the event loop."""
        return await asyncio.to_thread(self.resume, timeout=timeout)

    def cancel(self, *, timeout: float | None = None) -> JobInfo:
        """Ends the job; a running one after its current step. No-op if it has ended."""
        method = JOBS["CancelJob"]
        return _info(self._channel.call(method, method.request(id=self._id), timeout).job)

    async def cancel_async(self, *, timeout: float | None = None) -> JobInfo:
        """Ends the job like `cancel`, without blocking the event loop."""
        return await asyncio.to_thread(self.cancel, timeout=timeout)

    def delete(self, *, timeout: float | None = None) -> None:
        """Deletes the record, metrics, logs and checkpoints of the job, which must have ended.

        Outputs and published versions remain.
        """
        method = JOBS["DeleteJob"]
        try:
            self._channel.call(method, method.request(id=self._id), timeout)
        except errors.NotFound as error:
            if error.attempts == 1:
                raise
            # An earlier attempt may have deleted it, although its reply was lost.


def _check_succeeded(info: JobInfo) -> JobInfo:
    if info.state != "SUCCEEDED":
        raise JobError(info)
    return info


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def _state(number: int) -> str:
    return _STATE_NAMES.get(number, "")


def _progress(proto: Any) -> JobProgress:
    return JobProgress(
        rows=proto.rows,
        total_rows=proto.total_rows,
        step=proto.step,
        total_steps=proto.total_steps,
        epoch=proto.epoch,
        epochs=proto.epochs,
        loss=proto.loss if proto.HasField("loss") else None,
        rows_per_second=proto.rows_per_second,
        wait_seconds=proto.wait_seconds,
        durable_rows=proto.durable_rows,
        skipped_rows=proto.skipped_rows,
    )


def _event(proto: Any) -> JobEvent:
    if proto.WhichOneof("kind") == "progress":
        return JobEvent(proto.event, progress=_progress(proto.progress))
    change = proto.transition
    before = _state(getattr(change, "from")) or None
    transition = JobTransition(
        change.number, _time(change.time), before, _state(change.to), change.reason
    )
    return JobEvent(proto.event, transition=transition)


def _info(proto: Any) -> JobInfo:
    result = proto.result
    return JobInfo(
        id=proto.id,
        spec=_job_specs.from_proto(proto.spec),
        state=_state(proto.state),
        reason=proto.reason,
        identity=proto.identity,
        created=_time(proto.created) if proto.created else None,
        started=_time(proto.started) if proto.started else None,
        ended=_time(proto.ended) if proto.ended else None,
        attempts=proto.attempts,
        progress=_progress(proto.progress),
        result=JobResult(
            version=result.version or None,
            metrics=dict(sorted(result.metrics.items())),
            step=result.step,
            output=result.output,
            rows=result.rows,
            skipped_rows=result.skipped_rows,
        )
        if proto.HasField("result")
        else None,
        cancel_requested=proto.cancel_requested,
        trainer=proto.trainer,
        pause_requested=proto.pause_requested,
    )
