"""Random actions on the jobs of a server, and a small model of what they must lead to.

Users submit jobs of several priorities, pause, resume and cancel them, and the server is killed.
The model knows what a user asked of each job last. It says in which states the jobs may stay, which
changes of a state are allowed, and what an ended job leaves behind.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import braid
from e2e.support import durable, job_kills, jobs
from e2e.support.job_kills import NAMES, RECIPES, SCORES, Outcome
from e2e.support.jobs import JobServer
from e2e.support.polling import wait_until
from e2e.support.tracked import csv_values, json_values

MAX_RUNNING = 2
PRIORITIES = 4
NEWEST = 8  # actions choose one of the newest jobs that have not succeeded
MAX_BURST = 3  # actions in a row, before the jobs come to rest
MAX_DELAY_SECONDS = 0.5
MAX_CRASHES = 3  # in a row without durable progress; five fail a job
SETTLE_SECONDS = 60
TRACKING_SECONDS = 10
OPEN_JOBS = 5  # with fewer jobs that have not ended, the next action is a submission
# Relative frequencies of the other actions.
ACTIONS = {"submit": 3, "pause": 5, "resume": 5, "cancel": 1, "kill": 2}

PAUSED, RESUMED, CANCELLED = (f"{what} by a user" for what in ("paused", "resumed", "cancelled"))
CRASHED = "the server crashed while the job ran"
PREEMPTION = "preempted"
PREEMPTED = PREEMPTION + r" by job '(?P<by>[^']*)' of priority (?P<priority>\d+)"
# Events that JobActions counts.
REASONS = (PAUSED, RESUMED, CANCELLED, CRASHED, PREEMPTION)
# Reason of each change of a job's state, a regular expression.
CHANGES = {
    (None, "QUEUED"): "",
    ("QUEUED", "RUNNING"): "",
    ("QUEUED", "PAUSED"): PAUSED,
    ("QUEUED", "CANCELLED"): CANCELLED,
    ("RUNNING", "QUEUED"): f"{PREEMPTED}|{CRASHED}|{RESUMED}",
    ("RUNNING", "PAUSED"): PAUSED,
    ("RUNNING", "SUCCEEDED"): "",
    ("RUNNING", "CANCELLED"): CANCELLED,
    ("PAUSED", "QUEUED"): RESUMED,
    ("PAUSED", "CANCELLED"): CANCELLED,
}


class Wish(Enum):
    """Last request of a user for a job, and the states in which the job may then stay."""

    RUN = frozenset({"QUEUED", "RUNNING", "SUCCEEDED"})
    PAUSE = frozenset({"PAUSED", "SUCCEEDED"})
    CANCEL = frozenset({"CANCELLED", "SUCCEEDED"})


@dataclass
class ModelJob:
    """A submitted job. kills: of the server, before the job had ended. crashes: kills in a row
    without durable progress, at `durable_rows`."""

    job: braid.Job
    name: str
    priority: int
    wish: Wish = Wish.RUN
    pauses: int = 0
    kills: int = 0
    crashes: int = 0
    durable_rows: int = 0
    succeeded: bool = False


class JobActions:
    """Acts on the jobs of a server with the model of `job_kills`, and compares them with the model.

    wanted: results of undisturbed jobs with `steps` steps, by name.
    """

    def __init__(
        self,
        server: JobServer,
        client: braid.Client,
        tracking: Path,
        steps: int,
        wanted: dict[str, Outcome],
        seed: int,
    ) -> None:
        self._server = server
        self._client = client
        self._tracking = tracking
        self._steps = steps
        self._wanted = wanted
        self._random = random.Random(seed)
        self._jobs: dict[str, ModelJob] = {}
        self.counts: Counter[str] = Counter()  # actions, and reasons of changes

    def act(self, actions: int) -> None:
        """Makes so many actions, and fails if the jobs do not come to rest as the model says."""
        done = 0
        while done < actions:
            burst = min(self._random.randint(1, MAX_BURST), actions - done)
            for _ in range(burst):
                self._act_once()
            done += burst
            self._settle()
            time.sleep(self._random.uniform(0, MAX_DELAY_SECONDS))

    def finish(self) -> list[str]:
        """Resumes paused jobs and waits until all have ended. Returns what is wrong with them."""
        for model in self._jobs.values():
            if model.wish is Wish.PAUSE:
                self._change(model, Wish.RUN)
        wait_until(lambda: all(info.has_ended for info in self._infos().values()), job_kills.SECONDS)
        infos = self._infos()
        with ThreadPoolExecutor() as threads:  # The server sends ten changes of a job per second.
            checked = threads.map(lambda id: self._check(self._jobs[id], infos[id]), self._jobs)
        found = [f"{id}: {what}" for id, about in zip(self._jobs, checked) for what in about]
        outputs = {path.name for path in self._server.outputs.iterdir()}
        scored = {
            f"{id}.parquet"
            for id, info in infos.items()
            if self._jobs[id].name == SCORES and info.state == "SUCCEEDED"
        }
        if outputs - {f"{SCORES}-undisturbed.parquet"} != scored:
            found.append(f"outputs are {sorted(outputs)} instead of {sorted(scored)}")
        if trainers := self._client.trainers():
            found.append(f"trainers are left: {trainers}")
        return found

    def _act_once(self) -> None:
        action = self._random.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        candidates = [model for model in self._jobs.values() if not model.succeeded][-NEWEST:]
        if sum(model.wish is not Wish.CANCEL for model in candidates) < OPEN_JOBS:
            action = "submit"
        self.counts[action] += 1
        if action == "submit":
            self._submit()
        elif action == "kill":
            self._kill()
        else:
            wishes = {"pause": Wish.PAUSE, "resume": Wish.RUN, "cancel": Wish.CANCEL}
            self._change(self._random.choice(candidates), wishes[action])

    def _submit(self) -> None:
        name = self._random.choice(NAMES)
        priority = self._random.randrange(PRIORITIES)
        id = f"{name}-{len(self._jobs)}"
        job = job_kills.submit_one(self._client, name, id, self._steps, priority)
        self._jobs[id] = ModelJob(job, name, priority)

    def _change(self, model: ModelJob, wish: Wish) -> None:
        if wish is Wish.CANCEL:
            model.job.cancel()
            model.wish = wish
            return
        try:
            model.job.pause() if wish is Wish.PAUSE else model.job.resume()
        except braid.FailedPrecondition:
            assert model.job.info().has_ended
            return
        model.pauses += wish is Wish.PAUSE
        if model.wish is not Wish.CANCEL:
            model.wish = wish

    def _kill(self) -> None:
        wait_until(self._may_crash, SETTLE_SECONDS)
        for id, info in self._infos().items():
            self._jobs[id].kills += not info.has_ended
            self._jobs[id].crashes += info.state == "RUNNING"
        self._server.start_again()
        self._client.wait_ready(SETTLE_SECONDS)

    def _may_crash(self) -> bool:
        """Returns False if one more crash could fail a job."""
        for id, info in self._infos().items():
            model = self._jobs[id]
            if info.progress.durable_rows > model.durable_rows or info.has_ended:
                model.durable_rows, model.crashes = info.progress.durable_rows, 0
        return all(model.crashes < MAX_CRASHES for model in self._jobs.values())

    def _infos(self) -> dict[str, braid.JobInfo]:
        infos = {info.id: info for info in self._client.jobs.list_jobs()}
        return {id: infos[id] for id in self._jobs}

    def _settle(self) -> None:
        try:
            wait_until(lambda: not self._unrest(), SETTLE_SECONDS)
        except AssertionError as late:
            raise AssertionError(f"{self._unrest()} ({late})") from None

    def _unrest(self) -> str:
        """Returns why the jobs cannot stay as they are; empty if they may."""
        running, queued = [], []
        for id, info in self._infos().items():
            model = self._jobs[id]
            assert info.state != "FAILED", f"{id}: {info.reason}"
            model.succeeded = info.state == "SUCCEEDED"
            if info.state not in model.wish.value:
                return f"{id} is {info.state}, but a user asked it to {model.wish.name}"
            if info.state == "RUNNING":
                running.append(model.priority)
            elif info.state == "QUEUED":
                queued.append(model.priority)
        assert len(running) <= MAX_RUNNING
        if queued and len(running) < MAX_RUNNING:
            return "a job waits although another one may run"
        if queued and max(queued) > min(running):
            return f"a job of priority {max(queued)} waits behind one of {min(running)}"
        return ""

    def _check(self, model: ModelJob, info: braid.JobInfo) -> list[str]:
        return [*self._check_history(model), *self._check_result(model, info)]

    def _check_history(self, model: ModelJob) -> list[str]:
        """Checks every change of a job's state."""
        found = []
        state = None
        reasons: Counter[str] = Counter()
        for event in model.job.watch():
            change = event.transition
            if change is None:
                continue
            reason = CHANGES.get((change.before, change.state), None)
            by = reason is not None and re.fullmatch(reason, change.reason)
            if change.before != state or not by:
                found.append(f"{change.before} -> {change.state} ({change.reason}) after {state}")
                continue
            state = change.state
            if change.reason.startswith(PREEMPTION):
                other = self._jobs[by["by"]]
                if not int(by["priority"]) == other.priority > model.priority:
                    found.append(f"{change.reason}, at priority {model.priority}")
                reasons[PREEMPTION] += 1
            elif change.reason:
                reasons[change.reason] += 1
        if reasons[PAUSED] > model.pauses or reasons[CRASHED] > model.kills:
            found.append(f"{reasons}, but {model.pauses} pauses and {model.kills} kills")
        if reasons[CANCELLED] and model.wish is not Wish.CANCEL:
            found.append("cancelled by nobody")
        self.counts.update(reasons)
        return found

    def _check_result(self, model: ModelJob, info: braid.JobInfo) -> list[str]:
        if info.state != "SUCCEEDED":
            return [] if model.wish is Wish.CANCEL else [f"{info.state}: {info.reason}"]
        wanted = self._wanted[model.name]
        found = job_kills.differences(job_kills.outcome(self._server, model.job), wanted)
        if model.name in RECIPES:
            if info.progress.step != self._steps:
                found.append(f"ended after step {info.progress.step}")
            found += self._check_tracking(model, wanted.losses)
        return found

    def _check_tracking(self, model: ModelJob, wanted: dict[int, float]) -> list[str]:
        """Compares the tracked losses: each step is there once."""
        folder = self._tracking / "jobs" / model.job.id
        deadline = time.monotonic() + TRACKING_SECONDS
        while True:
            values = csv_values(folder)
            losses = {step: value for (step, name), value in values.items() if name == "loss"}
            if json_values(folder) == values and losses == wanted:
                return []
            if time.monotonic() > deadline:
                missing = sorted(wanted.keys() - losses.keys())
                wrong = sorted(step for step, loss in losses.items() if loss != wanted.get(step))
                return [f"tracked: missing {missing}, wrong {wrong}"]
            time.sleep(0.1)


@contextmanager
def running(directory: Path, rows: int, steps: int, seed: int) -> Iterator[JobActions]:
    """A server for random actions, on which undisturbed jobs have run. rows: of the table that all
    jobs read. steps: of each training job."""
    job_kills.prepare(directory)
    tracking = directory / "tracking"
    flags = {"max_running_jobs": str(MAX_RUNNING), "tracking_dir": str(tracking)}
    with jobs.serving(directory, **flags) as server, durable.connect(server) as client:
        job_kills.write_table(server, rows)
        wanted = job_kills.outcomes(server, job_kills.submit(client, "undisturbed", steps))
        yield JobActions(server, client, tracking, steps, wanted, seed)
