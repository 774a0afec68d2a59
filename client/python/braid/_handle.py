"""State of one handle on a trainer: sequence numbers, and replay after restarts."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from braid import _replay, _replies, _requests, errors
from braid._channel import Channel, remaining
from braid._protocol import DEVICES, TRAINING
from braid._replay import Operation, OperationLog
from braid._requests import Tensors
from braid.results import Checkpoint, TrainerInfo

if TYPE_CHECKING:
    from braid._pipeline import Pipeline

Read = TypeVar("Read")

# Calls that ask for the server's uptime before a start is assumed.
_MAX_UPTIME_CALLS = 5
# Errors after which it is unknown whether an operation was applied.
_UNKNOWN_OUTCOME = (errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled)


class Handle:
    """Sends a trainer's operations in order of their sequence numbers.

    lock: guards all fields except `channel` and `name`. While a stream is open, the stream owns the
    other fields instead.
    """

    def __init__(self, channel: Channel, info: TrainerInfo) -> None:
        self.channel = channel
        self.name = info.name
        # IDs distinguish this handle from others, and the trainer from others of the same name.
        self._trainer_id = info.id
        self._client_id = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.pipeline: Pipeline | None = None  # Pipeline of the open stream.
        # Keeps operations only with a policy: otherwise they never become durable.
        policy = ("checkpoint_every", "checkpoint_every_seconds")
        keeps = any(info.options.get(key) for key in policy)
        self.log = OperationLog(info.applied_sequence, keeps)
        # Operations sent after log.last whose outcome is unknown.
        self.unacknowledged: list[Operation] = []
        # Last sequence number known to be applied. Less than log.last during a replay.
        self.applied = info.applied_sequence
        self.reset_to(info)
        self._last_contact = time.monotonic()
        self._disconnected = False

    def check_free(self) -> None:
        """Raises RuntimeError while a stream is open."""
        if self.pipeline is not None:
            raise RuntimeError(f"trainer {self.name!r}: a stream is open (use it for operations)")

    def address(self, request: Any, sequence: int) -> None:
        """Sets the trainer, sender and sequence number of `request`."""
        request.trainer = self.name
        request.sequence = sequence
        request.sender.trainer_id = self._trainer_id
        request.sender.client_id = self._client_id
        request.sender.last_operator = self._operator_of(sequence - 1)

    def _operator_of(self, sequence: int) -> str:
        """Returns the ID of the client that made an operation at or after the handle's start."""
        return self._client_id if sequence > self._base_sequence else self._base_operator

    def operate(
        self,
        method: str,
        request: Any,
        timeout: float | None,
        tensors: Mapping[str, Tensors] | None = None,
    ) -> Any:
        """Replays lost operations, then sends `request` with the next sequence number.

        tensors: see `_requests.serialize`.
        """
        with self.lock:
            self.check_free()
            self.address(request, self.log.last + 1)
            payload = _requests.serialize(request, tensors or {})
            keeps_graph = getattr(request, "keep_graph", False)
            operation = Operation(request.sequence, method, payload, keeps_graph=keeps_graph)
            deadline = self.channel.deadline(timeout)
            if self.log.is_full(operation.size, keeps_graph):
                self.log.discard(self.applied, self.make_durable(remaining(deadline)))
            try:
                reply = self._send_through(operation.sequence, operation, deadline)
            except BaseException as error:
                self.record_unacknowledged([operation], error)
                raise
            self.unacknowledged.clear()
            self.log.add(operation)
            self.log.discard(self.applied, reply.status.durable_sequence)
            return reply

    def read(self, call: Callable[[float], Read], timeout: float | None) -> Read:
        """Returns the result of `call(timeout)` on a trainer with all of this handle's operations.

        First replays operations that a restart of the server undid. Repeats `call` if the server
        restarted in the meantime.
        """
        deadline = self.channel.deadline(timeout)
        while True:
            result, restarted = self._try_read(call, deadline)
            if not restarted:
                return result

    def read_once(self, call: Callable[[float], Read], timeout: float | None) -> Read:
        """Returns the result of a call that cannot be repeated; see `read`.

        Raises Unavailable if the server restarted in the meantime.
        """
        result, restarted = self._try_read(call, self.channel.deadline(timeout))
        if restarted:
            raise errors.Unavailable("the server restarted during the call")
        return result

    def _try_read(
        self, call: Callable[[float], Read], deadline: float | None
    ) -> tuple[Read, bool]:
        """Returns the result of `call`, and True if the server restarted before its end."""
        checked = self.resync(deadline)
        result = call(remaining(deadline))
        return result, self.started_after(checked)

    def resync(self, deadline: float | None) -> float:
        """Replays lost operations until the trainer is at least at the last acknowledged one.

        Returns a time at which the server had this state, on the time.monotonic clock. Raises the
        error of the next operation if lost operations cannot be replayed.
        """
        with self.lock:
            if self.pipeline is None:
                return self.resync_locked(deadline)
            pipeline = self.pipeline
        return pipeline.resync(deadline)

    def resync_locked(self, deadline: float | None) -> float:
        """Replays lost operations; see `resync`. Requires the lock, and no open stream."""
        while True:
            info, asked = self.locate(deadline)
            if info.applied_sequence >= self.applied == self.log.last:
                self.on_contact(asked)
                return asked
            if info.applied_sequence < self.applied:
                self.applied = -1 + _replay.resume_at(
                    info, self.log, self.applied, self.applied, self.restarted
                )
            self._send_through(self.log.last, None, deadline)

    def replay_lost(self, deadline: float | None) -> bool:
        """Replays the lost operations that it can. Returns True if none remain lost.

        Requires the lock, and no open stream.
        """
        try:
            self.resync_locked(deadline)
        except (errors.Unavailable, errors.DeadlineExceeded):
            raise
        except errors.BraidError:
            return False
        return True

    def sync(self, timeout: float | None) -> TrainerInfo:
        """Synchronizes with the trainer after the server has processed all received operations.

        Keeps the logged operations, and adds those that turn out to be applied, unless the trainer
        is at a different operation.
        """
        with self.lock:
            self.check_free()
            deadline = self.channel.deadline(timeout)
            while True:
                replayed = self.replay_lost(deadline)
                info = self.info(remaining(deadline), settled=True)
                # Another restart may have undone operations in the meantime.
                undone = replayed and info.applied_sequence < self.applied
                if not undone and not self._adopt_applied(info):
                    break
            stays = self.applied == self.log.last == info.applied_sequence
            if not stays or self._operated_by_other(info):
                self.reset_to(info)
            self.unacknowledged.clear()
            return info

    def record_unacknowledged(self, operations: list[Operation], error: BaseException) -> None:
        """Records `operations`, those after log.last, as unacknowledged because of `error`.

        A definite error means that none was applied, so they are not recorded.
        """
        known = isinstance(error, errors.BraidError) and not isinstance(error, _UNKNOWN_OUTCOME)
        if self.log.keeps and operations and not known:
            self.unacknowledged = operations

    def _adopt_applied(self, info: TrainerInfo) -> bool:
        """Logs unacknowledged operations that `info` reports as applied. Returns True if any were.

        The last one is sent again, so that the server compares it with the one it applied.
        """
        number = info.applied_sequence - self.log.last
        own = info.id == self._trainer_id and info.last_operator == self._client_id
        if not own or not 0 < number <= len(self.unacknowledged):
            return False
        for operation in self.unacknowledged[:number]:
            self.log.add(operation)
        self.unacknowledged.clear()
        self.applied = self.log.last - 1
        return True

    def reset_to(self, info: TrainerInfo) -> None:
        """Continues from the state in `info`, and drops all logged operations."""
        self.log.reset(info.applied_sequence)
        self.unacknowledged.clear()
        self.applied = info.applied_sequence
        # Sequence number and operator before this handle's first operation.
        self._base_sequence = info.applied_sequence
        self._base_operator = info.last_operator

    def _operated_by_other(self, info: TrainerInfo) -> bool:
        """Returns True if another client made the trainer's last operation, as far as known."""
        applied, operator = info.applied_sequence, info.last_operator
        known = self._base_sequence <= applied <= self.log.last
        expected = self._operator_of(applied) if known else operator
        return bool(operator and expected and operator != expected)

    @property
    def belongs_to_job(self) -> bool:
        """True for the trainer of a job, whose position changes without clients."""
        return self.name.startswith("job-")

    def check_operator(self, info: TrainerInfo) -> None:
        """Raises FailedPrecondition if another client has operated the trainer."""
        if self._operated_by_other(info):
            raise _replay.other_operator_error(info)

    def info(
        self, timeout: float | None, attempts: float | None = None, *, settled: bool = False
    ) -> TrainerInfo:
        """Returns the trainer's state. settled: wait for all received operations first."""
        method = TRAINING["GetTrainer"]
        request = method.request(name=self.name, settled=settled)
        reply = self.channel.call(method, request, timeout, attempts=attempts)
        return _replies.trainer_info(reply.trainer)

    def locate(self, deadline: float | None) -> tuple[TrainerInfo, float]:
        """Returns the trainer's state, and a time before the request, after the server's start.

        Waits for the server. Raises Aborted if the trainer was replaced.
        """
        while True:
            asked = time.monotonic()
            try:
                info = self.info(remaining(deadline), attempts=1)
                if info.id != self._trainer_id:
                    raise errors.Aborted(
                        f"trainer {self.name!r}: was deleted and created again (get a new handle)"
                    )
                self.check_operator(info)
                return info, asked
            except errors.Unavailable:
                self.on_disconnect()
            self.info(remaining(deadline), self.max_attempts)  # Waits for the server.

    def save_checkpoint(self, timeout: float | None) -> Checkpoint:
        """Writes a checkpoint that contains all of this handle's operations."""
        deadline = self.channel.deadline(timeout)
        while True:
            target = self.last_acknowledged()
            checkpoint = self.read(self.write_checkpoint, remaining(deadline))
            if checkpoint.sequence >= target:
                return checkpoint

    def last_acknowledged(self) -> int:
        """Returns the last sequence number that was ever acknowledged, even if undone since."""
        with self.lock:
            return self.log.last if self.pipeline is None else self.pipeline.last_acknowledged()

    def write_checkpoint(self, timeout: float | None) -> Checkpoint:
        """Writes a checkpoint of the trainer's current state."""
        method = TRAINING["SaveCheckpoint"]
        request = method.request(trainer=self.name)
        reply = self.channel.call(method, request, timeout, attempts=self.max_attempts)
        return _replies.checkpoint(reply.checkpoint)

    def make_durable(self, timeout: float | None) -> int:
        """Writes a checkpoint and returns its sequence number, so that the log can shrink.

        If the server writes no checkpoints, the log stops keeping applied operations.
        """
        try:
            return self.write_checkpoint(timeout).sequence
        except errors.FailedPrecondition:
            self.log.keeps = False
            return 0

    @property
    def max_attempts(self) -> float | None:
        """Maximum attempts of a call; unlimited if the handle can replay after a restart."""
        return math.inf if self.log.keeps else None

    def on_contact(self, moment: float) -> None:
        """Records that at `moment` the server had the trainer in the known state."""
        self._last_contact = moment
        self._disconnected = False

    def on_disconnect(self) -> None:
        """Records that the connection broke or failed."""
        self._disconnected = True

    def restarted(self) -> bool:
        """Returns True if the server may have restarted since its last reply."""
        return self._disconnected or self.started_after(self._last_contact)

    def started_after(self, moment: float) -> bool:
        """Returns True if the server reports a start after `moment` (time.monotonic)."""
        method = DEVICES["ListDevices"]
        # The uptime is from some time during the call. Asks again if the answer depends on when.
        for _ in range(_MAX_UPTIME_CALLS):
            asked = time.monotonic()
            try:
                uptime = self.channel.call(method, method.request()).uptime_seconds
            except errors.BraidError:
                return False
            if asked - uptime > moment:
                return True
            if time.monotonic() - uptime <= moment:
                return False
        return True

    def _send_through(self, last: int, asked: Operation | None, deadline: float | None) -> Any:
        """Sends all operations up to `last`: lost ones, and `asked`, which is not logged yet.

        Returns the last reply.
        """
        reply = None
        while self.applied < last:
            number = self.applied + 1
            current = asked if asked and number == asked.sequence else self.log.get(number)
            try:
                reply = self._send(current, deadline)
            except errors.FailedPrecondition as error:
                info = self.info(remaining(deadline))
                self.check_operator(info)
                if self.belongs_to_job or info.applied_sequence == self.applied:
                    raise failure_of(error, current, asked) from None
                self.applied = -1 + _replay.resume_at(
                    info, self.log, self.applied, current.sequence, self.restarted
                )
                continue
            self.applied = current.sequence
        return reply

    def _send(self, operation: Operation, deadline: float | None) -> Any:
        method = TRAINING[operation.method]
        try:
            reply = self.channel.call(
                method, operation.request(), remaining(deadline), attempts=self.max_attempts
            )
        except errors.BraidError as error:
            if error.attempts > 1 or isinstance(error, errors.Unavailable):
                self.on_disconnect()
            if isinstance(error, errors.Aborted):
                raise _replay.with_other_client_hint(error) from None
            raise
        self.on_contact(time.monotonic())
        return reply


def failure_of(
    error: errors.BraidError, failed: Operation, asked: Operation | None
) -> errors.BraidError:
    """Returns the error for a failed operation, with an explanation if it was a replay."""
    if failed is asked:
        return error
    return type(error)(
        f"operation {failed.sequence}: was applied, was lost in a restart of the server, and now "
        f"fails: {error.message}",
        error.violations,
        error.attempts,
    )
