"""Training with kill -9: a server is killed at chosen moments while clients stream to it."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from e2e.support import durable
from e2e.support.durable import DurableServer

SECONDS = 120  # Timeout of every wait.
CYCLE = 42  # Operations; the last one is a publication.

# Name of trainer and model → arguments of create_trainer.
RECIPES: dict[str, dict[str, Any]] = {
    "adamw": {
        "optimizer": {"name": "AdamW", "lr": 3e-3, "amsgrad": True},
        "schedule": {"name": "CosineAnnealingLR", "T_max": 50, "warmup": {"steps": 20}},
        "clip_grad_norm": 1.0,
        "seed": 1,
    },
    "sgd": {
        "optimizer": {"name": "SGD", "lr": 0.05, "momentum": 0.9, "nesterov": True},
        "schedule": {
            "name": "ReduceLROnPlateau",
            "interval": 7,
            "patience": 3,
            "factor": 0.9,
            "min_lr": 1e-3,
        },
        "clip_grad_value": 0.1,
        "seed": 2,
        "journal": "none",  # The client resends.
    },
}


@dataclass
class Outcome:
    """Result of a run. operations: the kind and the reply of each; None if the reply was lost."""

    operations: list[tuple[str, Any]] = field(default_factory=list)
    state: dict[str, np.ndarray] = field(default_factory=dict)
    versions: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    served: np.ndarray | None = None
    stands: tuple[int, int] = (0, 0)  # (updates, operations)


def kind_of(number: int) -> str:
    """Returns the kind of operation. One accumulation in each cycle spans the publication."""
    place = number % CYCLE
    if place == CYCLE - 1:
        return "publish"
    return {5: "forward_backward", 6: "optim_step"}.get(place % 7, "step")


class Learner(threading.Thread):
    """Streams the operations of a recipe until stopped, to the end of a cycle."""

    def __init__(self, server: DurableServer, recipe: str, cycles: int | None) -> None:
        """cycles: how many to run, even if not stopped; None: until stopped."""
        super().__init__(name=recipe, daemon=True)
        self.outcome = Outcome()
        self.error: BaseException | None = None
        self.replies = 0
        self.stopping = threading.Event()
        self._server, self._recipe, self._cycles = server, recipe, cycles
        self._futures: list[tuple[str, Future]] = []

    @property
    def cycles(self) -> int:
        return len(self._futures) // CYCLE

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        with durable.connect(self._server) as client:
            trainer = client.create_trainer(
                self._recipe, loss="cross_entropy", checkpoint_every=3, **RECIPES[self._recipe]
            )
            with trainer.stream(depth=4, replay=durable.batch) as stream:
                batches = itertools.count()
                while not self._ends():
                    kind = kind_of(len(self._futures))
                    trains = kind in ("step", "forward_backward")
                    arguments = durable.batch(next(batches)) if trains else ()
                    # Every version is written in every run, also those that are replaced at once.
                    options = {"wait_durable": True} if kind == "publish" else {}
                    future = getattr(stream, kind)(*arguments, **options)
                    future.add_done_callback(self._count)
                    self._futures.append((kind, future))
            outcome = self.outcome
            outcome.operations = [(kind, _reply(future)) for kind, future in self._futures]
            outcome.state = trainer.state_dict()
            info = trainer.info()
            outcome.stands = (info.step, info.applied_sequence)
            (outcome.served,) = client.infer(self._recipe, durable.batch(0)[0]).values()
        for path in (self._server.data / "models" / self._recipe).iterdir():
            outcome.versions[int(path.name)] = durable.weights_in(path)

    def _ends(self) -> bool:
        if len(self._futures) % CYCLE or not self._futures:
            return False
        return self.stopping.is_set() if self._cycles is None else self.cycles == self._cycles

    def _count(self, _: Future) -> None:
        self.replies += 1


def _reply(future: Future) -> Any:
    """Returns the parts of a reply that must be equal in every run."""
    result = future.result()
    if isinstance(result, int):
        return result
    if result.reply_lost:
        return None
    loss = getattr(result, "loss", None)
    return result.sequence, result.step, loss, result.lr, result.gradient_norm, result.skipped


class Killer:
    """Kills the server at chosen kinds of moments, after each learner has had another reply."""

    def __init__(self, server: DurableServer, learners: list[Learner], seed: int) -> None:
        self._server, self._learners = server, learners
        self._random = random.Random(seed)
        self._start_seconds = 0.5
        self.moments: dict[str, Callable[[], None]] = {
            "step": self._step,
            "checkpoint": self._checkpoint,
            "publish": self._publish,
            "start": self._start,
        }

    def kill(self, moment: str) -> None:
        """Kills the server and restarts it."""
        before = [learner.replies for learner in self._learners]
        self._await(
            lambda: all(now.replies > then for now, then in zip(self._learners, before)),
            "replies",
        )
        self.moments[moment]()
        self._server.kill()
        began = time.monotonic()
        self._server.start()
        self._start_seconds = time.monotonic() - began

    def _step(self) -> None:
        time.sleep(self._random.uniform(0, 0.05))

    def _checkpoint(self) -> None:
        """Waits until a checkpoint is being written: its directory has just been created."""
        self._await(lambda: any(self._entries("trainers/*/checkpoints/.tmp-*")), "a checkpoint")
        time.sleep(self._random.uniform(0, 0.01))

    def _publish(self) -> None:
        """Waits until a version is being written, or is written but probably not replied."""
        pattern = self._random.choice(("models/*/.tmp-*", "models/*/[0-9]*"))
        before = self._entries(pattern)
        self._await(lambda: self._entries(pattern) - before, "a version")

    def _start(self) -> None:
        """Waits for a random moment between process start and shortly after readiness."""
        self._server.kill()
        seconds = self._random.uniform(0.1, 1.1) * self._start_seconds
        timer = threading.Timer(seconds, lambda: self._server.process.kill())
        timer.start()
        try:
            self._server.start()
        except RuntimeError:
            assert self._server.process.returncode == -9, self._server.log
        timer.join()

    def _entries(self, pattern: str) -> set[Path]:
        return set(self._server.data.glob(pattern))

    def _await(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            for learner in self._learners:
                if not learner.is_alive():
                    raise AssertionError(f"{learner.name} has ended") from learner.error
            assert time.monotonic() < deadline, f"no {what}\n{self._server.log}"
            time.sleep(0.0005)


def _finish(learners: list[Learner]) -> dict[str, Outcome]:
    for learner in learners:
        learner.stopping.set()
    for learner in learners:
        learner.join(SECONDS)
        assert not learner.is_alive(), f"{learner.name} has not ended"
        if learner.error is not None:
            raise AssertionError(f"{learner.name} has failed") from learner.error
    return {learner.name: learner.outcome for learner in learners}


def train(
    directory: Path,
    kills: list[str],
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    format: str = "torchscript",
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Trains all recipes through `kills`, moments of Killer, then equally long without kills.

    on_progress: called with the numbers of kills and replies so far. format: of the models.
    """
    runs = []
    cycles: dict[str, int | None] = dict.fromkeys(RECIPES)
    for name, moments in (("killed", kills), ("undisturbed", [])):
        for recipe in RECIPES:
            durable.export_noisy(directory / name / "models" / recipe, format)
        server = DurableServer(directory / name / "models", "cpu*2", directory / name / "run")
        try:
            server.start()
            learners = [Learner(server, recipe, cycles[recipe]) for recipe in RECIPES]
            for learner in learners:
                learner.start()
            killer = Killer(server, learners, seed)
            for count, moment in enumerate(moments, 1):
                killer.kill(moment)
                if on_progress is not None:
                    on_progress(count, sum(learner.replies for learner in learners))
            runs.append(_finish(learners))
            cycles = {learner.name: learner.cycles for learner in learners}
            server.stop()
        finally:
            server.kill()
    return runs[0], runs[1]


def moments(count: int, seed: int) -> list[str]:
    """Returns equally many moments of each kind, in a random order."""
    every = itertools.cycle(("step", "checkpoint", "publish", "start"))
    kinds = list(itertools.islice(every, count))
    random.Random(seed).shuffle(kinds)
    return kinds


def differences(killed: Outcome, wanted: Outcome) -> list[str]:
    """Describes the differences. Empty if the runs are equal bit for bit."""
    found = []
    if killed.stands != wanted.stands:
        found.append(f"stands at {killed.stands}, not {wanted.stands}")
    for number, (mine, other) in enumerate(zip(killed.operations, wanted.operations), 1):
        if mine[0] != other[0] or mine[1] not in (None, other[1]):
            found.append(f"operation {number}: {mine}, not {other}")
    if len(killed.operations) != len(wanted.operations):
        found.append(f"{len(killed.operations)} operations, not {len(wanted.operations)}")
    found += _tensor_differences("weights", killed.state, wanted.state)
    if sorted(killed.versions) != sorted(wanted.versions):
        found.append(f"versions {sorted(killed.versions)}, not {sorted(wanted.versions)}")
    else:
        for version, state in wanted.versions.items():
            found += _tensor_differences(f"version {version}", killed.versions[version], state)
    if killed.served is None or killed.served.tobytes() != wanted.served.tobytes():
        found.append("another version is served")
    return found


def _tensor_differences(what: str, mine: dict, other: dict) -> list[str]:
    if list(mine) != list(other):
        return [f"{what}: {list(mine)}, not {list(other)}"]
    return [
        f"{what}: {name} differs"
        for name, value in other.items()
        if mine[name].tobytes() != value.tobytes()
    ]
