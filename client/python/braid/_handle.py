"""Where one handle on a trainer stands: its numbers, and operating it through restarts."""

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

# What leaves open whether an operation was applied.
_OPEN = (errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled)


class Handle:
    """Sends a trainer's operations in the order of their numbers.

    lock: guards all but `channel` and `name`, but for the time that a stream is open, which has
    the rest to itself.
    """

    def __init__(self, channel: Channel, info: TrainerInfo) -> None:
        self.channel = channel
        self.name = info.name
        # Another handle's operations are not taken for this one's, nor another trainer of the
        # name for this one.
        self._trainer_id = info.id
        self._client_id = uuid.uuid4().hex
        self.lock = threading.Lock()
        self.pipeline: Pipeline | None = None  # Of the stream that is open.
        # Only with a policy: else nothing would ever make an operation durable.
        policy = ("checkpoint_every", "checkpoint_every_seconds")
        keeps = any(info.options.get(key) for key in policy)
        self.log = OperationLog(info.applied_sequence, keeps)
        # What was sent after log.last, without a reply that would tell whether it was applied.
        self.unanswered: list[Operation] = []
        # The last number applied, as far as is known. Less than log.last while what a restart of
        # the server has undone is being sent again.
        self.standing = info.applied_sequence
        self.begin_at(info)
        self._heard_at = time.monotonic()
        self._broke = False

    def check_free(self) -> None:
        """RuntimeError while a stream is open."""
        if self.pipeline is not None:
            raise RuntimeError(f"trainer {self.name!r}: a stream is open; operate through that")

    def address(self, request: Any, sequence: int) -> None:
        """Has `request` say whose it is and which number it has."""
        request.trainer = self.name
        request.sequence = sequence
        request.sender.trainer_id = self._trainer_id
        request.sender.client_id = self._client_id
        request.sender.last_operator = self._operator_of(sequence - 1)

    def _operator_of(self, sequence: int) -> str:
        """Who made that operation, as this handle knows, which has begun there or before it."""
        return self._client_id if sequence > self._begun else self._follows

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
            self.address(request, self.log.last + 1)
            payload = _requests.serialize(request, tensors or {})
            keeps_graph = getattr(request, "keep_graph", False)
            operation = Operation(request.sequence, method, payload, keeps_graph=keeps_graph)
            deadline = self.channel.deadline(timeout)
            if self.log.is_full(operation.size, keeps_graph):
                self.log.settle(self.standing, self.make_durable(remaining(deadline)))
            try:
                reply = self._send_up_to(operation.sequence, operation, deadline)
            except BaseException as error:
                self.leave_open([operation], error)
                raise
            self.unanswered.clear()
            self.log.add(operation)
            self.log.settle(self.standing, reply.status.durable_sequence)
            return reply

    def read(self, call: Callable[[float], Read], timeout: float | None) -> Read:
        """What `call`, given its timeout, finds in a trainer that has all that was operated here.

        A restart would take the trainer back without a word, so it is made up for first. `call`
        is made again if there was one between that and its end.
        """
        deadline = self.channel.deadline(timeout)
        while True:
            result, restarted = self._try_read(call, deadline)
            if not restarted:
                return result

    def read_once(self, call: Callable[[float], Read], timeout: float | None) -> Read:
        """As `read`, of a call that cannot be made again: Unavailable where it would be."""
        result, restarted = self._try_read(call, self.channel.deadline(timeout))
        if restarted:
            raise errors.Unavailable("the server was started again meanwhile")
        return result

    def _try_read(
        self, call: Callable[[float], Read], deadline: float | None
    ) -> tuple[Read, bool]:
        """What `call` finds, and whether the server was started again before its end."""
        checked = self.bring_up(deadline)
        result = call(remaining(deadline))
        return result, self.started_after(checked)

    def bring_up(self, deadline: float | None) -> float:
        """Has the trainer stand where this handle has seen it, or further on.

        Returns when the server that said so was there, by time.monotonic. Raises what the next
        operation would, if the trainer has lost what cannot be sent again.
        """
        with self.lock:
            if self.pipeline is None:
                return self.bring_up_alone(deadline)
            pipeline = self.pipeline
        return pipeline.bring_up(deadline)

    def bring_up_alone(self, deadline: float | None) -> float:
        """`bring_up` by who holds the lock, while no stream is open."""
        while True:
            info, asked = self.look(deadline)
            if info.applied_sequence >= self.standing == self.log.last:
                self.heard(asked)
                return asked
            if info.applied_sequence < self.standing:
                self.standing = -1 + _replay.resume_at(
                    info, self.log, self.standing, self.standing, self.restarted
                )
            self._send_up_to(self.log.last, None, deadline)

    def make_up(self, deadline: float | None) -> bool:
        """Sends again what a restart has undone, as far as it can be: the rest is to be given up.

        Returns whether all could be. By who holds the lock, while no stream is open.
        """
        try:
            self.bring_up_alone(deadline)
        except (errors.Unavailable, errors.DeadlineExceeded):
            raise
        except errors.BraidError:
            return False
        return True

    def sync(self, timeout: float | None) -> TrainerInfo:
        """Goes on from where the trainer stands once the server is done with what it was sent.

        What is kept stays, and with it what turns out to have been applied, unless the trainer is
        elsewhere.
        """
        with self.lock:
            self.check_free()
            deadline = self.channel.deadline(timeout)
            while True:
                made_up = self.make_up(deadline)
                info = self.info(remaining(deadline), settled=True)
                undone = made_up and info.applied_sequence < self.standing  # By another restart.
                if not undone and not self._take_over(info):
                    break
            stays = self.standing == self.log.last == info.applied_sequence
            if not stays or self._is_anothers(info):
                self.begin_at(info)
            self.unanswered.clear()
            return info

    def leave_open(self, operations: list[Operation], error: BaseException) -> None:
        """Notes that `error` came in place of the replies to `operations`, those after log.last.

        A refusal says that none was applied, and nothing of what came before it.
        """
        known = isinstance(error, errors.BraidError) and not isinstance(error, _OPEN)
        if self.log.keeps and operations and not known:
            self.unanswered = operations

    def _take_over(self, info: TrainerInfo) -> bool:
        """Whether `info` says that operations without a reply were applied: they are kept now.

        The last of them is to be sent again, so that the server compares it with what it applied.
        """
        number = info.applied_sequence - self.log.last
        mine = info.id == self._trainer_id and info.last_operator == self._client_id
        if not mine or not 0 < number <= len(self.unanswered):
            return False
        for operation in self.unanswered[:number]:
            self.log.add(operation)
        self.unanswered.clear()
        self.standing = self.log.last - 1
        return True

    def begin_at(self, info: TrainerInfo) -> None:
        """Operates the trainer from where `info` says on, and forgets what it has operated."""
        self.log.reset(info.applied_sequence)
        self.unanswered.clear()
        self.standing = info.applied_sequence
        # After which operation, and after whom.
        self._begun = info.applied_sequence
        self._follows = info.last_operator

    def _is_anothers(self, info: TrainerInfo) -> bool:
        """Whether what the trainer applied last is another's, where this handle knows whose it is."""
        applied, operator = info.applied_sequence, info.last_operator
        known = self._begun <= applied <= self.log.last
        expected = self._operator_of(applied) if known else operator
        return bool(operator and expected and operator != expected)

    def check_operator(self, info: TrainerInfo) -> None:
        """FailedPrecondition if another has operated the trainer in place of this handle."""
        if self._is_anothers(info):
            raise _replay.operated_by_another(info)

    def info(
        self, timeout: float | None, attempts: float | None = None, *, settled: bool = False
    ) -> TrainerInfo:
        """The trainer. settled: once what was received before is applied or has failed."""
        method = TRAINING["GetTrainer"]
        request = method.request(name=self.name, settled=settled)
        reply = self.channel.call(method, request, timeout, attempts=attempts)
        return _replies.trainer_info(reply.trainer)

    def look(self, deadline: float | None) -> tuple[TrainerInfo, float]:
        """The trainer, and when the server that tells was asked: after it was started."""
        while True:
            asked = time.monotonic()
            try:
                info = self.info(remaining(deadline), attempts=1)
                if info.id != self._trainer_id:
                    raise errors.Aborted(
                        f"trainer {self.name!r} was deleted, and another has its name: attach anew"
                    )
                self.check_operator(info)
                return info, asked
            except errors.Unavailable:
                self.broke()
            self.info(remaining(deadline), self.patience)  # Waits for the server.

    def save_checkpoint(self, timeout: float | None) -> Checkpoint:
        """A checkpoint that holds all that was operated here, written now."""
        deadline = self.channel.deadline(timeout)
        while True:
            seen = self.seen()
            checkpoint = self.read(self.write_checkpoint, remaining(deadline))
            if checkpoint.sequence >= seen:
                return checkpoint

    def seen(self) -> int:
        """The last number known to be applied, whether or not a restart has undone it."""
        with self.lock:
            return self.log.last if self.pipeline is None else self.pipeline.seen()

    def write_checkpoint(self, timeout: float | None) -> Checkpoint:
        """One of the trainer as it stands."""
        method = TRAINING["SaveCheckpoint"]
        request = method.request(trainer=self.name)
        reply = self.channel.call(method, request, timeout, attempts=self.patience)
        return _replies.checkpoint(reply.checkpoint)

    def make_durable(self, timeout: float | None) -> int:
        """Has a checkpoint written and returns its number, so that the log can shrink.

        Of a server that writes none the log keeps no more from here on.
        """
        try:
            return self.write_checkpoint(timeout).sequence
        except errors.FailedPrecondition:
            self.log.keeps = False
            return 0

    @property
    def patience(self) -> float | None:
        """How often a call is sent at most: a server that comes back is waited for."""
        return math.inf if self.log.keeps else None

    def heard(self, moment: float) -> None:
        """Notes that at `moment` the server was there, with a trainer that stands as was seen."""
        self._heard_at = moment
        self._broke = False

    def broke(self) -> None:
        """Notes that the connection broke, or could not be made."""
        self._broke = True

    def restarted(self) -> bool:
        """Whether the server may be another instance than the one that replied last."""
        return self._broke or self.started_after(self._heard_at)

    def started_after(self, moment: float) -> bool:
        """Whether the server was started after `moment`, by time.monotonic, as far as it tells."""
        method = DEVICES["ListDevices"]
        try:
            uptime = self.channel.call(method, method.request()).uptime_seconds
        except errors.BraidError:
            return False
        return bool(time.monotonic() - uptime > moment)

    def _send_up_to(self, last: int, asked: Operation | None, deadline: float | None) -> Any:
        """Has all up to `last` applied: what was undone, and `asked`, which is not kept yet.

        Returns the last reply.
        """
        reply = None
        while self.standing < last:
            number = self.standing + 1
            current = asked if asked and number == asked.sequence else self.log.get(number)
            try:
                reply = self._send(current, deadline)
            except errors.FailedPrecondition as error:
                info = self.info(remaining(deadline))
                self.check_operator(info)
                if info.applied_sequence == self.standing:
                    raise own_failure(error, current, asked) from None
                self.standing = -1 + _replay.resume_at(
                    info, self.log, self.standing, current.sequence, self.restarted
                )
                continue
            self.standing = current.sequence
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
        self.heard(time.monotonic())
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
