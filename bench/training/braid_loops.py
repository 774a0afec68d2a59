"""Training loops through a Braid server on loopback, with the Python client in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
from e2e.support.server import Server

from bench.training.workloads import Workload

Tensors = dict[str, np.ndarray]
# Phases of a step in which the model computes.
COMPUTING = ("forward", "loss", "backward")
STREAM_DEPTH = 2


class BraidServer:
    """Server with `replicas` CPU replicas of one thread each. folder: new, for its files."""

    def __init__(self, repository: Path, replicas: int, folder: Path) -> None:
        self._server = Server(repository, f"cpu*{replicas}", folder, ("--cpu_threads=1",))
        try:
            self._server.start()
        except BaseException:
            self._server.kill()
            raise
        self.client = braid.connect(self._server.address)

    @property
    def metrics_url(self) -> str:
        return self._server.metrics_url

    def close(self) -> None:
        self.client.close()
        try:
            self._server.stop()
        finally:
            self._server.kill()


class BraidLoop:
    """Runs steps of its own trainer, with Trainer.stream or Trainer.step."""

    def __init__(self, client: braid.Client, workload: Workload, streaming: bool) -> None:
        self._batches = workload.batches()
        self._streaming = streaming
        self._trainer = client.create_trainer(
            workload.name,
            name=f"{workload.name}-{'stream' if streaming else 'step'}",
            loss="cross_entropy",
            optimizer=workload.optimizer,
            journal="none",  # The loops of PyTorch write nothing, either.
        )
        # From the last run: seconds per step by phase, with "rest" for time in no phase except
        # "queue", and the fraction of the wall time outside COMPUTING.
        self.phases: dict[str, float] = {}
        self.overhead = 0.0

    def run(self, steps: int) -> float:
        """Runs `steps` steps and returns the seconds they took."""
        start = time.perf_counter()
        results = self._stream(steps) if self._streaming else self._step(steps)
        seconds = time.perf_counter() - start
        self.phases = {
            phase: sum(result.phases[phase] for result in results) / steps
            for phase in results[0].phases
        }
        # In a stream, a step is queued while the previous one runs.
        known = sum(self.phases[phase] for phase in self.phases if phase != "queue")
        self.phases["rest"] = seconds / steps - known
        computing = sum(self.phases[phase] for phase in COMPUTING)
        self.overhead = 1 - computing * steps / seconds
        return seconds

    def _stream(self, steps: int) -> list[braid.StepResult]:
        with self._trainer.stream(depth=STREAM_DEPTH) as stream:
            futures = [stream.step(inputs, targets) for inputs, targets in self._tensors(steps)]
        return [future.result() for future in futures]

    def _step(self, steps: int) -> list[braid.StepResult]:
        return [self._trainer.step(inputs, targets) for inputs, targets in self._tensors(steps)]

    def _tensors(self, steps: int) -> Iterator[tuple[Tensors, Tensors]]:
        for step in range(steps):
            x, target = self._batches[step % len(self._batches)]
            # The argument of nn.Sequential.forward is named "input".
            yield {"input": x}, {"target": target}
