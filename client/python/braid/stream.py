"""Pipelined operations of a trainer that survive broken connections."""

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
from braid._pipeline import LostReply, Pipeline, Result
from braid._replay import Operation
from braid._requests import Tensors
from braid.results import OperationResult, StepResult

Replay = Callable[[int], tuple[Tensors, Tensors]]


class Stream:
    """Pipelined operations of one trainer, from `Trainer.stream`. Thread-safe.

    A context manager. Each method submits an operation and returns a future of its result. It
    blocks while `depth` operations are in flight. The server applies operations in the order of the
    calls. Leaving the block waits until all are applied.

    The stream reconnects after a broken connection, and replays operations that the server has not
    applied, or lost in a restart: each operation stays in a buffer until it is durable. Completed
    futures do not change. Only a reply can be lost; see `braid.OperationResult.reply_lost`.

    A failed operation ends the stream. Its future raises the error, and later futures raise
    Cancelled, because their operations are not applied. Afterwards every method and leaving the
    block raise the error. An exception in the block cancels operations in flight; then call
    `Trainer.sync`, which returns the trainer's state and continues from there.

    Callbacks of futures run in the thread that reads replies: they must not call the stream.
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
        """Creates a stream. Internal: use `Trainer.stream`."""
        for name, value in (("depth", depth), ("buffer_operations", buffer_operations)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} (expected at least 1)")
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
                raise RuntimeError("a stream can be entered only once")
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
            self._pipeline.abort()
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
        batch_id: str | None = None,
    ) -> Future[StepResult]:
        """Submits a training step; see `Trainer.step`."""
        request = _requests.step(
            lr, weight_decay, momentum, group_lr, metric, report_split, batch_id
        )
        lost = partial(_replies.lost_result, StepResult)
        return self._submit("Step", request, _replies.step_result, lost, (inputs, targets))

    def forward_backward(
        self,
        inputs: Tensors,
        targets: Tensors,
        *,
        report_split: bool = False,
        batch_id: str | None = None,
    ) -> Future[StepResult]:
        """Submits forward and backward; see `Trainer.forward_backward`."""
        request = _requests.forward_backward(report_split, batch_id)
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
        """Submits an update; see `Trainer.optim_step`."""
        request = _requests.optim_step(lr, weight_decay, momentum, group_lr, metric)
        lost = partial(_replies.lost_result, OperationResult)
        return self._submit("OptimStep", request, _replies.operation_result, lost)

    def publish(self, model: str | None = None, *, wait_durable: bool = False) -> Future[int]:
        """Submits a publication; see `Trainer.publish`. Later operations wait for its reply."""
        result = partial(_replies.published_version, wait_durable=wait_durable)
        return self._submit("Publish", _requests.publish(model, wait_durable), result, None)

    def _submit(
        self,
        method: str,
        request: Any,
        result: Result,
        lost: LostReply | None,
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
        rebuild = None
        if batch is not None and self._replay is not None:
            check = zlib.crc32(payload)
            rebuild = partial(_rebuild, self._replay, self._batches, method, request, check)
        return Operation(request.sequence, method, payload, rebuild, start)


def _rebuild(replay: Replay, number: int, method: str, request: Any, check: int) -> bytes:
    """Rebuilds a request's bytes from its replayed batch. Raises ValueError if they differ."""
    tensors = _requests.batch(*replay(number))
    payload, _ = _requests.serialize_framed(method, request, tensors)
    if zlib.crc32(payload) != check:
        raise ValueError(f"replay({number}): returned a different batch than before")
    return payload
