"""What a handle keeps to send again, and the rule by which it does.

A server that is started again has its trainers stand where their newest checkpoints do: at the
durable number. The operations after it have to be made again, each with its own number and bytes,
before training goes on. The rule, where the trainer stands elsewhere than the handle has seen:

- further on, within what the handle has sent: replies were lost, nothing else. The operation that
  the trainer stands at is sent again, so that the server compares it with the one it applied;
- further on than that: another client operates the trainer, which is an error;
- further back, at its durable number, and the connection broke or the server is another instance
  than the one that replied last: the server was started again. What the handle keeps of the
  operations after that number is sent again. If it keeps too few, that is an error;
- further back otherwise: another client has restored a checkpoint, which is an error.

Numbers can meet by chance, so the trainer says who made it stand where it does, and an operation
says whom it follows. Where that is another than the handle knows, it is an error, wherever the
trainer stands.

A handle never sends what it did not operate itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from braid import _requests
from braid.errors import BraidError, FailedPrecondition
from braid.results import TrainerInfo

_DEFAULT_BYTES = 512 << 20
# What an operation takes beside its payload, about.
_BOOKKEEPING_BYTES = 512


@dataclass
class Operation:
    """A numbered operation, serialized. `remake` gives the bytes where `payload` is None.

    start: where in the bytes the request begins. Before it they are those of a StreamRequest.
    keeps_graph: a Backward may follow, which no checkpoint in between must part from it.
    """

    sequence: int
    method: str
    payload: bytes | None
    remake: Callable[[], bytes] | None = None
    start: int = 0
    keeps_graph: bool = False

    def request(self) -> bytes:
        """The request's bytes. Raises what `remake` raises."""
        return self._bytes()[self.start :]

    def framed(self) -> bytes:
        """Those of the StreamRequest that holds it. Raises what `remake` raises."""
        payload = self._bytes()
        return payload if self.start else _requests.frame(self.method, payload)

    def _bytes(self) -> bytes:
        if self.payload is not None:
            return self.payload
        assert self.remake is not None
        return self.remake()

    @property
    def size(self) -> int:
        return _BOOKKEEPING_BYTES + (0 if self.payload is None else len(self.payload))


class OperationLog:
    """Operations in a row, from the first that a restart of the server could undo to the last.

    keeps: whether operations that were applied stay in it until they are durable. Thread-
    compatible.
    """

    def __init__(self, applied: int, keeps: bool) -> None:
        self.keeps = keeps
        self.limit(None, None)
        self.reset(applied)

    def reset(self, applied: int) -> None:
        """Empties it; the next operation is the one after `applied`."""
        self.base = applied  # The number before the first operation.
        self._operations: deque[Operation] = deque()
        self._bytes = 0

    def limit(self, operations: int | None, size: int | None) -> None:
        """Bounds what it holds: operations (None: unbounded) and bytes (None: 512 MiB)."""
        self._most_operations = operations
        self._most_bytes = _DEFAULT_BYTES if size is None else size

    @property
    def last(self) -> int:
        """The number of the last operation, also where it is no longer kept."""
        return self.base + len(self._operations)

    def is_full(self, size: int, keeps_graph: bool = False) -> bool:
        """Whether an operation of `size` bytes more is too much. An empty log takes any.

        So does one that ends in a graph that is kept, unless what comes keeps another: room is
        made by a checkpoint, which holds no graph, and would lose it before its Backward.
        """
        if not self._operations:
            return False
        if self._operations[-1].keeps_graph and not keeps_graph:
            return False
        most = self._most_operations
        return (
            (most is not None and len(self._operations) >= most)
            or self._bytes + size > self._most_bytes
        )

    def get(self, sequence: int) -> Operation:
        """The operation of a number in (base, last]."""
        return self._operations[sequence - self.base - 1]

    def add(self, operation: Operation) -> None:
        """Adds the one after the last."""
        assert operation.sequence == self.last + 1
        self._operations.append(operation)
        self._bytes += operation.size

    def release(self, operation: Operation) -> None:
        """Drops the payload of an operation that can be made again."""
        if operation.remake is not None:
            self._bytes -= operation.size
            operation.payload = None
            self._bytes += operation.size

    def settle(self, applied: int, durable: int) -> None:
        """Drops what need not be sent again, the trainer being where the numbers say."""
        until = durable if self.keeps else applied
        while self._operations and self._operations[0].sequence <= until:
            self._bytes -= self._operations.popleft().size
            self.base += 1

    def drop_after(self, sequence: int) -> list[Operation]:
        """Drops the operations after `sequence`, whose numbers are free again, and returns them."""
        dropped: list[Operation] = []
        while self._operations and self._operations[-1].sequence > sequence:
            operation = self._operations.pop()
            self._bytes -= operation.size
            dropped.insert(0, operation)
        return dropped


def resume_at(
    info: TrainerInfo, log: OperationLog, seen: int, sent: int, restarted: Callable[[], bool]
) -> int:
    """The number to send next, by the rule above.

    info: the trainer as it stands. seen: the last number whose reply has come, of those that the
    trainer has applied since it last fell back; sent: the last one sent since.
    FailedPrecondition where nothing may be sent.
    """
    stands = info.applied_sequence
    if seen <= stands <= sent:
        return max(stands, seen + 1)
    if stands > sent:
        raise FailedPrecondition(
            f"trainer {info.name!r} expects operation {stands + 1}, this handle is at {sent}"
            f"{_OTHER_CLIENT}"
        )
    if stands != info.durable_sequence or not restarted():
        raise FailedPrecondition(
            f"trainer {info.name!r} expects operation {stands + 1}, though it had applied "
            f"{seen} and the server was not started again: another client has restored a "
            f"checkpoint; {_SYNC}"
        )
    if stands < log.base:
        why = "this handle keeps none before" if log.keeps else (
            "the trainer has no checkpoint policy, so this handle keeps none before"
        )
        raise FailedPrecondition(
            f"trainer {info.name!r} expects operation {stands + 1}: with the server's restart it "
            f"has lost those up to {seen}, and {why} {log.base + 1}; {_SYNC}"
        )
    return stands + 1


def operated_by_another(info: TrainerInfo) -> FailedPrecondition:
    """What to raise where operation `info.applied_sequence` is not the one that a handle knows."""
    return FailedPrecondition(
        f"trainer {info.name!r} stands at another operation {info.applied_sequence} than this "
        f"handle knows: another client has operated it, or restored a checkpoint; {_SYNC}"
    )


def by_another_client(error: BraidError) -> BraidError:
    """`error`, saying that another client is the likely cause."""
    return type(error)(f"{error.message}{_OTHER_CLIENT}", error.violations, error.attempts)


_SYNC = "Trainer.sync goes on from where it stands"
_OTHER_CLIENT = (
    f": another client operates this trainer, or an operation of unknown outcome went before; "
    f"{_SYNC}"
)
