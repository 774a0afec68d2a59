"""Log of operations that a handle may replay, and the rule for replay.

After a restart of the server, each trainer is at its durable sequence number: the last operation of
its journal, or of its newest checkpoint. Later operations must be replayed, with the same numbers and bytes, before training
continues. If the trainer's applied number differs from the one that the handle knows, it is:

- larger, but not larger than the last number sent: only replies were lost. The handle sends the
  trainer's last operation again, so that the server compares it with the one it applied;
- larger than the last number sent: another client operates the trainer. This is an error;
- smaller and equal to the durable number, after a broken connection or a restart of the server: the
  handle replays its logged operations after that number. Missing operations are an error;
- smaller otherwise: another client restored a checkpoint. This is an error.

Numbers can agree by chance. Therefore the trainer reports the client of its last operation, and
each operation names the client of its predecessor. If they differ from what the handle knows, this
is an error regardless of the numbers.

A handle never replays operations of other handles.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from braid import _requests
from braid.errors import BraidError, FailedPrecondition
from braid.results import TrainerInfo

_DEFAULT_BYTES = 512 << 20
# Approximate memory of an operation without its payload.
_BOOKKEEPING_BYTES = 512


@dataclass
class Operation:
    """Serialized operation with a sequence number.

    rebuild: returns the bytes if `payload` is None.
    start: offset of the request in the bytes, after the header of a StreamRequest.
    keeps_graph: True if a Backward may follow. No checkpoint may come between.
    """

    sequence: int
    method: str
    payload: bytes | None
    rebuild: Callable[[], bytes] | None = None
    start: int = 0
    keeps_graph: bool = False

    def request(self) -> bytes:
        """Returns the request's bytes. Exceptions of `rebuild` propagate."""
        return self._bytes()[self.start :]

    def framed(self) -> bytes:
        """Returns a StreamRequest with the request. Exceptions of `rebuild` propagate."""
        payload = self._bytes()
        return payload if self.start else _requests.frame(self.method, payload)

    def _bytes(self) -> bytes:
        if self.payload is not None:
            return self.payload
        assert self.rebuild is not None
        return self.rebuild()

    @property
    def size(self) -> int:
        return _BOOKKEEPING_BYTES + (0 if self.payload is None else len(self.payload))


class OperationLog:
    """Consecutive operations, from the first that a restart could undo. Thread-compatible.

    keeps: True if applied operations stay in the log until they are durable.
    """

    def __init__(self, applied: int, keeps: bool) -> None:
        self.keeps = keeps
        self.limit(None, None)
        self.reset(applied)

    def reset(self, applied: int) -> None:
        """Clears the log. The next operation is the one after `applied`."""
        self.base = applied  # Sequence number before the first operation.
        self._operations: deque[Operation] = deque()
        self._bytes = 0

    def limit(self, operations: int | None, size: int | None) -> None:
        """Limits the number of operations (None: unlimited) and the bytes (None: 512 MiB)."""
        self._max_operations = operations
        self._max_bytes = _DEFAULT_BYTES if size is None else size

    @property
    def last(self) -> int:
        """Sequence number of the last operation, even if it was discarded."""
        return self.base + len(self._operations)

    def is_full(self, size: int, keeps_graph: bool = False) -> bool:
        """Returns True if an operation of `size` bytes does not fit. An empty log accepts any.

        A log that ends with a kept graph accepts any operation that keeps no graph: making room
        requires a checkpoint, which would lose the graph before its Backward.
        """
        if not self._operations:
            return False
        if self._operations[-1].keeps_graph and not keeps_graph:
            return False
        most = self._max_operations
        return (
            (most is not None and len(self._operations) >= most)
            or self._bytes + size > self._max_bytes
        )

    def get(self, sequence: int) -> Operation:
        """Returns the operation with a sequence number in (base, last]."""
        assert sequence > self.base
        return self._operations[sequence - self.base - 1]

    def add(self, operation: Operation) -> None:
        """Appends an operation, which must have the next sequence number."""
        assert operation.sequence == self.last + 1
        self._operations.append(operation)
        self._bytes += operation.size

    def release(self, operation: Operation) -> None:
        """Drops the payload of an operation that can be rebuilt."""
        if operation.rebuild is not None:
            self._bytes -= operation.size
            operation.payload = None
            self._bytes += operation.size

    def discard(self, applied: int, durable: int) -> None:
        """Discards operations that need no replay, given the applied and durable numbers.

        applied: last number with a reply. Later ones stay, even if they are durable, because their
            replies are pending.
        """
        until = min(durable, applied) if self.keeps else applied
        while self._operations and self._operations[0].sequence <= until:
            self._bytes -= self._operations.popleft().size
            self.base += 1

    def drop_after(self, sequence: int) -> list[Operation]:
        """Removes and returns the operations after `sequence`, so that their numbers are free."""
        dropped: list[Operation] = []
        while self._operations and self._operations[-1].sequence > sequence:
            operation = self._operations.pop()
            self._bytes -= operation.size
            dropped.insert(0, operation)
        return dropped


def resume_at(
    info: TrainerInfo,
    log: OperationLog,
    acknowledged: int,
    sent: int,
    restarted: Callable[[], bool],
) -> int:
    """Returns the sequence number to send next, by the rule of this module.

    info: state of the trainer.
    acknowledged: last number acknowledged since the last replay began.
    sent: last number sent since then.
    restarted: returns True if the server may have restarted.
    Raises FailedPrecondition if nothing may be sent.
    """
    applied = info.applied_sequence
    if acknowledged <= applied <= sent:
        return max(applied, acknowledged + 1)
    if applied > sent:
        raise FailedPrecondition(
            f"trainer {info.name!r} expects operation {applied + 1}, this handle is at {sent}"
            f"{_OTHER_CLIENT}"
        )
    if applied != info.durable_sequence or not restarted():
        raise FailedPrecondition(
            f"trainer {info.name!r} expects operation {applied + 1}, although it had applied "
            f"{acknowledged} and the server did not restart: another client restored a "
            f"checkpoint; {_SYNC}"
        )
    if applied < log.base:
        reason = (
            "earlier ones came from other programs"
            if log.keeps
            else "the trainer has no checkpoint policy"
        )
        raise FailedPrecondition(
            f"trainer {info.name!r} expects operation {applied + 1}: the server restarted and lost "
            f"operations up to {acknowledged}. This client can resend only from {log.base + 1} "
            f"({reason}); {_SYNC}"
        )
    return applied + 1


def other_operator_error(info: TrainerInfo) -> FailedPrecondition:
    """Returns the error for a last operation by another client."""
    return FailedPrecondition(
        f"trainer {info.name!r}: operation {info.applied_sequence} is not the one that this handle "
        f"knows: another client operated the trainer or restored a checkpoint; {_SYNC}"
    )


def with_other_client_hint(error: BraidError) -> BraidError:
    """Adds to `error` that another client is the likely cause."""
    return type(error)(f"{error.message}{_OTHER_CLIENT}", error.violations, error.attempts)


_SYNC = "call Trainer.sync to continue from its current state"
_OTHER_CLIENT = (
    f": another client operates this trainer, or the outcome of an earlier operation is unknown; "
    f"{_SYNC}"
)
