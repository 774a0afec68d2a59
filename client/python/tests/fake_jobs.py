"""JobService of the fake server.

A job is queued until a test calls `run`, or at once if `runs` is true. Its loss is 1 / step.
"""

from __future__ import annotations

import time

import grpc

from braid import _protocol

_Job = _protocol.message("braid.v1.Job")
_Progress = _protocol.message("braid.v1.JobProgress")
_Transition = _protocol.message("braid.v1.JobTransition")
_LogLine = _protocol.message("braid.v1.JobLogLine")
QUEUED, RUNNING, PAUSED, SUCCEEDED, FAILED, CANCELLED = 1, 2, 3, 4, 5, 6
_STEPS = 3


class FakeJobs:
    """Jobs by ID, in the order of submission.

    runs: a new job runs and ends at once.
    failure: reason with which jobs fail; "": they succeed.
    page_size: maximum number of jobs, metrics and log lines in a reply.
    """

    def __init__(self):
        self.jobs = {}
        self.transitions = {}
        self.runs = True
        self.failure = ""
        self.page_size = 2

    def run(self, id):
        job = self.jobs[id]
        self._move(job, RUNNING)
        job.attempts += 1
        job.started = 2.0
        job.progress.rows = job.progress.total_rows = 30
        if job.spec.HasField("train"):
            job.progress.step = job.progress.total_steps = _STEPS
            job.progress.epoch = job.progress.epochs = 1
            job.progress.loss = 1 / _STEPS
        if self.failure:
            self._move(job, FAILED, self.failure)
            return
        if job.spec.HasField("train"):
            job.result.version = 3
            job.result.metrics["loss"] = 0.25
            job.result.metrics["accuracy"] = 0.75
        else:
            job.result.output = "/outputs/scores.parquet"
            job.result.rows = 30
        self._move(job, SUCCEEDED)

    def SubmitJob(self, request, context):
        job = _Job(id=request.id, spec=request.spec, identity="ann", created=1.0)
        if request.dry_run:
            job.id = ""
            job.progress.total_rows = 30
            return _protocol.JOBS["SubmitJob"].response(job=job)
        existing = self.jobs.get(request.id)
        if existing is None:
            self.jobs[request.id] = job
            self.transitions[request.id] = []
            self._move(job, QUEUED)
            if self.runs:
                self.run(request.id)
        elif existing.spec != request.spec:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"id: job {request.id!r} exists")
        return _protocol.JOBS["SubmitJob"].response(job=self.jobs[request.id])

    def GetJob(self, request, context):
        return _protocol.JOBS["GetJob"].response(job=self._job(request.id, context))

    def ListJobs(self, request, context):
        jobs = list(self.jobs.values())
        if not request.oldest_first:
            jobs.reverse()
        jobs = [
            job for job in jobs
            if (not request.states or job.state in request.states)
            and request.tag in ("", *job.spec.tags)
        ]
        first, _, size = request.page_token.partition("/")
        if size and int(size) != request.page_size:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "page_token: from other arguments")
        first = int(first or 0)
        end = first + min(request.page_size or self.page_size, self.page_size)
        token = f"{end}/{request.page_size}" if end < len(jobs) else ""
        return _protocol.JOBS["ListJobs"].response(jobs=jobs[first:end], next_page_token=token)

    def WatchJob(self, request, context):
        job = self._job(request.id, context)
        sent = request.after
        while context.is_active():
            for transition in self.transitions[request.id][sent:]:
                event = _protocol.JOBS["WatchJob"].response(
                    event=transition.number, transition=transition
                )
                if transition.to in (SUCCEEDED, FAILED):
                    yield _protocol.JOBS["WatchJob"].response(
                        event=transition.number - 1, progress=job.progress
                    )
                yield event
                if transition.to == RUNNING:  # A job has no totals before it reads its data.
                    yield _protocol.JOBS["WatchJob"].response(
                        event=transition.number, progress=_Progress()
                    )
                sent = transition.number
            if job.state in (SUCCEEDED, FAILED, CANCELLED):
                return
            time.sleep(0.01)

    def PauseJob(self, request, context):
        job = self._job(request.id, context)
        if job.state == QUEUED:
            self._move(job, PAUSED, "paused by a user")
        elif job.state == RUNNING:
            job.pause_requested = True
        elif job.state != PAUSED:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"id: job {job.id!r} has ended")
        return _protocol.JOBS["PauseJob"].response(job=job)

    def ResumeJob(self, request, context):
        job = self._job(request.id, context)
        if job.state == PAUSED:
            self._move(job, QUEUED, "resumed by a user")
        elif job.state not in (QUEUED, RUNNING):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"id: job {job.id!r} has ended")
        return _protocol.JOBS["ResumeJob"].response(job=job)

    def CancelJob(self, request, context):
        job = self._job(request.id, context)
        if job.state in (QUEUED, PAUSED):
            self._move(job, CANCELLED, "cancelled by a user")
        elif job.state == RUNNING:
            job.cancel_requested = True
        return _protocol.JOBS["CancelJob"].response(job=job)

    def DeleteJob(self, request, context):
        job = self._job(request.id, context)
        if job.state in (QUEUED, RUNNING, PAUSED):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"id: job {job.id!r} is QUEUED")
        del self.jobs[request.id]
        return _protocol.JOBS["DeleteJob"].response()

    def GetJobMetrics(self, request, context):
        self._job(request.id, context)
        reply = _protocol.JOBS["GetJobMetrics"].response()
        first = max(request.first_step, 1)
        last = min(first + self.page_size - 1, _STEPS)
        steps = range(first, last + 1)
        series = {
            "evaluation/loss": [(step, 0.5) for step in steps if step == _STEPS],
            "loss": [(step, 1 / step) for step in steps],
        }
        for name, values in series.items():
            if values and (not request.names or name in request.names):
                reply.series.add(
                    name=name,
                    steps=[step for step, _ in values],
                    values=[value for _, value in values],
                )
        reply.next_step = last + 1 if last < _STEPS else 0
        return reply

    def GetJobLogs(self, request, context):
        self._job(request.id, context)
        lines = [
            _LogLine(number=number, time=float(number), level=level, text=text)
            for number, (level, text) in enumerate(
                [(1, "starts at step 0"), (2, "slow disk"), (3, "spec.train.data.path: broken")], start=1
            )
        ]
        rest = [line for line in lines if line.number > request.after]
        return _protocol.JOBS["GetJobLogs"].response(lines=rest[:self.page_size])

    def _job(self, id, context):
        if id not in self.jobs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"id: there is no job {id!r}")
        return self.jobs[id]

    def _move(self, job, state, reason=""):
        list_ = self.transitions[job.id]
        transition = _Transition(number=len(list_) + 1, time=1.0 + len(list_), to=state,
                                 reason=reason)
        setattr(transition, "from", job.state)
        list_.append(transition)
        job.state, job.reason = state, reason
        if state in (SUCCEEDED, FAILED, CANCELLED):
            job.ended = 3.0
