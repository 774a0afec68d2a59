"""Operations of a trainer, several on their way at once, through broken connections."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any

from braid import _replies, _requests
from braid._handle import Handle
from braid._pipeline import Lost, Pipeline, Result
from braid._replay import Operation
from braid._requests import Tensors
from braid.results import OperationResult, StepResult

Replay = Callable[[int], tuple[Tensors, Tensors]]


class Stream:
    """Operations of one trainer, pipelined, from `Trainer.stream`. Thread-safe.

    A context manager. Each method hands an operation over and returns the future of its result;
    it blocks while `depth` operations are under way. Operations are applied in the order of the
    calls. Leaving the block waits until all are applied.

    A connection that breaks is made again, and what the server has not applied, or has lost
    because it was started again, is sent again: every operation stays in a buffer until it is
    durable. Futures that are done stay as they are. See `braid.OperationResult.reply_lost` for
    the one thing that can be lost.

    An operation that fails ends the stream: its future raises the error and those behind it raise
    Cancelled, as none of them is applied. After that every method raises the error, and so does
    leaving the block. Leaving it by an exception gives up what is under way; `Trainer.sync` then
    says, and takes over, where the trainer stands.

    A future's callbacks run in the thread that reads replies: they must not call the stream.
    """

    def __init__(
        self,
        handle: Handle,
        depth: int,
        replay: Replay | None,
        buffer_operations: int | None,
        buffer_bytes: int | None,
        timeout: float | None,
    ) -> None:
        """For the package's own use."""
        for name, value in (("depth", depth), ("buffer_operations", buffer_operations)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        self._handle = handle
        self._limits = (buffer_operations, buffer_bytes)
        self._replay = replay
        self._pipeline = Pipeline(handle, depth, handle.channel.seconds(timeout))
        self._entered = False
        self._submitting = threading.Lock()
        self._batches = 0  # Guarded by _submitting.

    def __enter__(self) -> Stream:
        with self._handle.lock:
            self._handle.check_free()
            if self._entered:
                raise RuntimeError("a stream is entered once")
            self._entered = True
            self._handle.pipeline = self._pipeline
            self._handle.log.limit(*self._limits)
        self._pipeline.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._pipeline.end()
        finally:
            self._pipeline.give_up()
            with self._handle.lock:
                self._handle.log.limit(None, None)
                self._handle.pipeline = None
        if kind is None and self._pipeline.failure is not None:
            raise self._pipeline.failure

    def step(
        self,
        inputs: Tensors,
        targets: Tensors,
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        group_lr: Sequence[float] | None = None,
        metric: float | None = None,
        report_split: bool = False,
    ) -> Future[StepResult]:
        """As `Trainer.step`."""
        request = _requests.step(lr, weight_decay, momentum, group_lr, metric, report_split)
        lost = partial(_replies.lost_result, StepResult)
        return self._submit("Step", request, _replies.step_result, lost, (inputs, targets))

    def forward_backward(
        self, inputs: Tensors, targets: Tensors, *, report_split: bool = False
    ) -> Future[StepResult]:
        """As `Trainer.forward_backward`."""
        request = _requests.forward_backward(report_split)
        lost = partial(_replies.lost_result, StepResult)
        return self._submit(
            "ForwardBackward", request, _replies.step_result, lost, (inputs, targets)
        )

    def optim_step(
        self,
        *,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        group_lr: Sequence[float] | None = None,
        metric: float | None = None,
    ) -> Future[OperationResult]:
        """As `Trainer.optim_step`."""
        request = _requests.optim_step(lr, weight_decay, momentum, group_lr, metric)
        lost = partial(_replies.lost_result, OperationResult)
        return self._submit("OptimStep", request, _replies.operation_result, lost)

    def publish(self) -> Future[int]:
        """As `Trainer.publish`. What comes behind it is sent once it is answered."""
        return self._submit("Publish", _requests.publish(), _replies.published_version, None)

    def _submit(
        self,
        method: str,
        request: Any,
        result: Result,
        lost: Lost | None,
        batch: tuple[Tensors, Tensors] | None = None,
    ) -> Future[Any]:
        with self._submitting:
            self._handle.address(request, self._pipeline.next_sequence())
            operation = self._operation(method, request, batch)
            future = self._pipeline.submit(operation, result, lost)
            self._batches += batch is not None
        return future

    def _operation(
        self, method: str, request: Any, batch: tuple[Tensors, Tensors] | None
    ) -> Operation:
        tensors = {} if batch is None else _requests.batch(*batch)
        payload, start = _requests.serialize_framed(method, request, tensors)
        remake = None
        if batch is not None and self._replay is not None:
            check = zlib.crc32(payload)
            remake = partial(_remake, self._replay, self._batches, method, request, check)
        return Operation(request.sequence, method, payload, remake, start)


def _remake(replay: Replay, number: int, method: str, request: Any, check: int) -> bytes:
    """The bytes of a request again, from itself without its batch. ValueError if they differ."""
    tensors = _requests.batch(*replay(number))
    payload, _ = _requests.serialize_framed(method, request, tensors)
    if zlib.crc32(payload) != check:
        raise ValueError(f"replay({number}) gave another batch than was sent before")
    return payload
