"""Where one handle on a trainer stands: its numbers, and operating it through restarts."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

from braid import _replay, _replies, _requests, errors
from braid._channel import Channel, remaining
from braid._protocol import DEVICES, TRAINING
from braid._replay import Operation, OperationLog
from braid._requests import Tensors
from braid.results import Checkpoint, TrainerInfo


class Handle:
    """Sends a trainer's operations in the order of their numbers.

    lock: guards all but `channel` and `name`, but for the time that a stream is open, which has
    the rest to itself.
    """

    def __init__(self, channel: Channel, info: TrainerInfo) -> None:
        self.channel = channel
        self.name = info.name
        self.lock = threading.Lock()
        self.streaming = False
        # Only with a policy: else nothing would ever make an operation durable.
        policy = ("checkpoint_every", "checkpoint_every_seconds")
        keeps = any(info.options.get(key) for key in policy)
        self.log = OperationLog(info.applied_sequence, keeps)
        # The last number applied, as far as is known. Less than log.last while what a restart of
        # the server has undone is being sent again.
        self.standing = info.applied_sequence
        self._heard_at = time.monotonic()
        self._broke = False

    def check_free(self) -> None:
        """RuntimeError while a stream is open."""
        if self.streaming:
            raise RuntimeError(f"trainer {self.name!r}: a stream is open; operate through that")

    def operate(
        self,
        method: str,
        request: Any,
        timeout: float | None,
        tensors: Mapping[str, Tensors] | None = None,
    ) -> Any:
        """Sends `request` with the next number, and first what a restart has undone.

        tensors: as `_requests.serialize` takes them.
        """
        with self.lock:
            self.check_free()
            request.trainer = self.name
            request.sequence = self.log.last + 1
            payload = _requests.serialize(request, tensors or {})
            operation = Operation(request.sequence, method, payload)
            deadline = self.channel.deadline(timeout)
            if self.log.is_full(operation.size):
                self.log.settle(self.standing, self.make_durable(remaining(deadline)))
            reply = self._send_up_to(operation, deadline)
            self.log.add(operation)
            self.log.settle(self.standing, reply.status.durable_sequence)
            return reply

    def go_on_from(self, applied: int) -> None:
        """Takes the trainer to stand at `applied`. What is kept is forgotten if it is elsewhere."""
        if applied != self.log.last:
            self.log.reset(applied)
        self.standing = applied

    def info(self, timeout: float | None, attempts: float | None = None) -> TrainerInfo:
        method = TRAINING["GetTrainer"]
        request = method.request(name=self.name)
        reply = self.channel.call(method, request, timeout, attempts=attempts)
        return _replies.trainer_info(reply.trainer)

    def save_checkpoint(self, timeout: float | None) -> Checkpoint:
        method = TRAINING["SaveCheckpoint"]
        request = method.request(trainer=self.name)
        reply = self.channel.call(method, request, timeout, attempts=self.patience)
        return _replies.checkpoint(reply.checkpoint)

    def make_durable(self, timeout: float | None) -> int:
        """Has a checkpoint written and returns its number, so that the log can shrink.

        Of a server that writes none the log keeps no more from here on.
        """
        try:
            return self.save_checkpoint(timeout).sequence
        except errors.FailedPrecondition:
            self.log.keeps = False
            return 0

    @property
    def patience(self) -> float | None:
        """How often a call is sent at most: a server that comes back is waited for."""
        return math.inf if self.log.keeps else None

    def heard(self) -> None:
        """Notes that the server has replied to an operation."""
        self._heard_at = time.monotonic()
        self._broke = False

    def broke(self) -> None:
        """Notes that the connection broke, or could not be made."""
        self._broke = True

    def restarted(self) -> bool:
        """Whether the server may be another instance than the one that replied last."""
        if self._broke:
            return True
        method = DEVICES["ListDevices"]
        try:
            uptime = self.channel.call(method, method.request()).uptime_seconds
        except errors.BraidError:
            return False
        return bool(time.monotonic() - uptime > self._heard_at)

    def _send_up_to(self, operation: Operation, deadline: float | None) -> Any:
        """Sends what has been undone, if anything, then `operation`, whose reply it returns."""
        while True:
            number = self.standing + 1
            current = operation if number == operation.sequence else self.log.get(number)
            try:
                reply = self._send(current, deadline)
            except errors.FailedPrecondition as error:
                info = self.info(remaining(deadline))
                if info.applied_sequence == self.standing:
                    raise own_failure(error, current, operation) from None
                self.standing = -1 + _replay.resume_at(
                    info, self.log, self.standing, current.sequence, self.restarted
                )
                continue
            self.standing = current.sequence
            if current is operation:
                return reply

    def _send(self, operation: Operation, deadline: float | None) -> Any:
        method = TRAINING[operation.method]
        try:
            reply = self.channel.call(
                method, operation.request(), remaining(deadline), attempts=self.patience
            )
        except errors.BraidError as error:
            if error.attempts > 1 or isinstance(error, errors.Unavailable):
                self.broke()
            if isinstance(error, errors.Aborted):
                raise _replay.by_another_client(error) from None
            raise
        self.heard()
        return reply


def own_failure(
    error: errors.BraidError, failed: Operation, asked: Operation | None
) -> errors.BraidError:
    """What to raise where `failed` itself fails: `error`, unless it had succeeded before."""
    if failed is asked:
        return error
    return type(error)(
        f"operation {failed.sequence} had been applied, was lost with the server's restart, and "
        f"now fails: {error.message}",
        error.violations,
        error.attempts,
    )
