"""Operations of a trainer on their way over the method Stream, through lost connections."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import grpc

from braid import _replay, errors
from braid._channel import remaining
from braid._handle import Handle, own_failure
from braid._protocol import TRAINING
from braid._replay import Operation
from braid._requests import STREAM_FIELDS

Result = Callable[[Any], Any]
Lost = Callable[[int, Any], Any]


@dataclass
class _Pending:
    """An operation whose future is not done. lost: the result where only the reply is missing."""

    sequence: int
    future: Future[Any]
    result: Result
    lost: Lost | None

    def resolve(self, sequence: int, reply: Any) -> None:
        """Gives the future its result. reply: of the operation `sequence`, its own or a later."""
        try:
            if sequence == self.sequence:
                self.future.set_result(self.result(reply))
            else:
                assert self.lost is not None
                self.future.set_result(self.lost(self.sequence, reply.status))
        except Exception as error:
            self.future.set_exception(error)


class _Connection:
    """One call of the method Stream: which operations it is at."""

    def __init__(self, first: int) -> None:
        self.to_send = first
        self.to_answer = first
        self.barrier = 0  # Nothing is sent until this operation is answered.
        self.call: Any = None
        self.over = False
        self.error: BaseException | None = None  # Of making a request again.


class Pipeline:
    """Sends what it is given and gives futures their results.

    `next_sequence` and `submit` are for one thread at a time. One thread of its own makes
    connections and reads replies; what it may send again, and from where, `braid._replay` says.
    Another looks after the time. A thread of gRPC's sends.
    """

    def __init__(self, handle: Handle, depth: int, timeout: float | None) -> None:
        """timeout: seconds; None: no limit."""
        self._handle = handle
        self._depth = depth
        self._timeout = timeout
        self._changed = threading.Condition()
        # Guarded by _changed, as is what the handle has.
        self._pending: deque[_Pending] = deque()
        self._connection: _Connection | None = None
        self._sent = 0  # The last number sent since the trainer last fell back.
        self._progress = 0.0  # When something was last replied, or became pending.
        self._open = False
        self._left = False  # By an exception.
        self._fell_back = False  # A reader has found out, and waits until it is made up for.
        self.failure: BaseException | None = None
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"braid-stream-{handle.name}", daemon=True)
            for target in (self._run, self._watch)
        ]

    def start(self) -> None:
        """Once."""
        self._sent = self._handle.standing
        self._open = True
        for thread in self._threads:
            thread.start()

    def next_sequence(self) -> int:
        """The number of the operation to submit next. Raises what the pipeline failed with."""
        with self._changed:
            self._check_open()
            return self._handle.log.last + 1

    def submit(self, operation: Operation, result: Result, lost: Lost | None) -> Future[Any]:
        """Waits for room, then hands `operation` over.

        result: makes the future's result of the reply. lost: makes it of the operation's number
        and a later one's status; None: the reply cannot get lost.
        """
        self._wait_for_room(operation.size)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            self._check_open()
            if not self._pending:
                self._progress = time.monotonic()
            self._handle.log.add(operation)
            self._pending.append(_Pending(operation.sequence, future, result, lost))
            self._changed.notify_all()
        return future

    def end(self) -> None:
        """Takes no more operations, and waits for those under way."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._threads[0].join()

    def give_up(self) -> None:
        """Ends what is under way, if anything is."""
        with self._changed:
            self._open = False
            self._left = True
            if self._connection is not None:
                self._connection.call.cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def seen(self) -> int:
        """As `Handle.seen`."""
        with self._changed:
            return self._seen()

    def bring_up(self, deadline: float | None) -> float:
        """As `Handle.bring_up`. Raises what the pipeline failed with, if it has."""
        handle = self._handle
        while True:
            seen = self.seen()
            info, asked = handle.look(deadline)
            if info.applied_sequence >= seen:
                return asked
            with self._changed:
                self._check_open()
                if handle.standing >= seen:
                    self._fall_back()
                done = self._changed.wait_for(
                    lambda: not (self._open and (self._fell_back or handle.standing < seen)),
                    None if deadline is None else remaining(deadline),
                )
            if not done:
                raise errors.DeadlineExceeded("what the server has lost is being sent again")

    def _seen(self) -> int:
        return self._pending[0].sequence - 1 if self._pending else self._handle.log.last

    def _look_up(self) -> None:
        """Tells who waits where the trainer stands now."""
        if self._handle.standing >= self._seen():
            self._fell_back = False
        self._changed.notify_all()

    def _fall_back(self) -> None:
        """Has what was lost sent again, though nothing may be pending."""
        self._fell_back = True
        self._progress = time.monotonic()
        if self._connection is not None:
            self._connection.call.cancel()
        self._changed.notify_all()

    def _wait_for_room(self, size: int) -> None:
        """Waits until less than `depth` operations are under way and the buffer has room."""
        log = self._handle.log

        def full() -> bool:
            return log.is_full(size)

        def free() -> bool:
            pending = len(self._pending)
            return pending < self._depth and (pending == 0 or not full())

        with self._changed:
            self._changed.wait_for(lambda: not self._open or free())
            self._check_open()
            if not full():
                return
        # Replies will bring nothing: there are none to come. So the client asks for durability.
        durable = self._handle.make_durable(math.inf if self._timeout is None else self._timeout)
        with self._changed:
            log.settle(self._handle.standing, durable)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self._open:
            raise RuntimeError("the stream is not open: use it in its `with` block")

    # Only the pipeline's own threads, and gRPC's, run what follows.

    def _run(self) -> None:
        """Keeps a connection as long as there is something to send or to be replied."""
        ended: errors.BraidError | None = None
        attempt = 0
        try:
            while self._wait_for_work(attempt, ended):
                progress = self._progress
                ended = self._attend(ended)
                if isinstance(ended, errors.Unavailable):
                    self._handle.broke()
                attempt = 0 if ended is None else attempt + 1
                if self._progress > progress:
                    attempt = min(attempt, 1)
        except BaseException as error:
            self._fail(error)
        self._done.set()

    def _wait_for_work(self, attempt: int, ended: errors.BraidError | None) -> bool:
        """Waits until there is something to send; False if there will be nothing.

        Before another attempt it waits a little. Raises `ended` when the time for that is over.
        """
        with self._changed:
            if attempt > 0:
                backoff = self._handle.channel.retry.backoff(attempt)
                self._changed.wait_for(lambda: self._left, backoff)
            self._changed.wait_for(
                lambda: self._left or not self._open or self._pending or self._fell_back
            )
            if self._left:
                raise errors.Cancelled("the stream was left")
            if self._awaited() and ended is not None and self._remaining() <= 0:
                raise ended
            return bool(self._pending) or (self._open and self._fell_back)

    def _attend(self, ended: errors.BraidError | None) -> errors.BraidError | None:
        """One connection from its start to its end, after another that `ended` so.

        Returns what to go on after; raises what is the end.
        """
        handle = self._handle
        first = handle.standing + 1
        if ended is not None or self._fell_back:
            try:
                info = handle.info(max(self._remaining(), 0.0), attempts=1)
            except errors.Unavailable as unreachable:
                return unreachable
            handle.check_operator(info)
            own = isinstance(ended, errors.FailedPrecondition)
            if own and info.applied_sequence == handle.standing:
                asked = self._pending[0].sequence if self._pending else 0
                failed = handle.log.get(first)
                raise own_failure(ended, failed, failed if first == asked else None)
            first = _replay.resume_at(
                info, handle.log, handle.standing, self._sent, handle.restarted
            )
            with self._changed:
                if first <= handle.standing:
                    handle.standing = self._sent = first - 1
                self._look_up()
        return self._converse(_Connection(first))

    def _converse(self, connection: _Connection) -> errors.BraidError | None:
        channel = self._handle.channel
        call = channel.open_stream(TRAINING["Stream"], self._requests(connection))
        with self._changed:
            connection.call = call
            self._connection = connection
            if self._left:
                call.cancel()
        ended: errors.BraidError | None = None
        try:
            for reply in call:
                self._answer(connection, reply)
        except grpc.RpcError as error:
            ended = errors.from_rpc_error(error, 1, channel.address)
        finally:
            with self._changed:
                self._connection = None
                connection.over = True
                self._changed.notify_all()
            call.cancel()  # Does nothing to one that has ended.
        if connection.error is not None:
            raise connection.error
        return self._judge(ended)

    def _judge(self, ended: errors.BraidError | None) -> errors.BraidError | None:
        """What of a connection's end can be gone on after; the rest is raised."""
        with self._changed:
            if self._left:
                raise errors.Cancelled("the stream was left")
            if self._awaited() and self._remaining() <= 0 and isinstance(ended, errors.Cancelled):
                raise errors.DeadlineExceeded(f"no reply in {self._timeout} seconds")
            if self._fell_back and isinstance(ended, errors.Cancelled):
                return errors.Unavailable("the server was started again")
            if ended is None and self._pending:
                return errors.Unavailable("the server ended the stream")
        if isinstance(ended, errors.Aborted):
            raise _replay.by_another_client(ended)
        if ended is None or isinstance(ended, (errors.Unavailable, errors.FailedPrecondition)):
            return ended
        raise ended

    def _requests(self, connection: _Connection) -> Iterator[bytes]:
        """What a connection sends, as it becomes due. Iterated by a thread of gRPC's."""
        log = self._handle.log

        def due() -> bool:
            return connection.to_answer > connection.barrier and connection.to_send <= log.last

        def finished() -> bool:
            return connection.over or not (self._open or self._pending)

        while True:
            with self._changed:
                self._changed.wait_for(lambda: finished() or due())
                if finished():
                    return
                operation = log.get(connection.to_send)
                connection.to_send += 1
                self._sent = max(self._sent, operation.sequence)
                if operation.method == "Publish":
                    # So its reply, which nothing else can tell, stays the server's last one.
                    connection.barrier = operation.sequence
            try:
                payload = operation.framed()
            except BaseException as error:
                connection.error = error
                return
            yield payload

    def _answer(self, connection: _Connection, reply: Any) -> None:
        handle = self._handle
        done = []
        with self._changed:
            if connection.to_answer >= connection.to_send:
                raise errors.Internal("the server replied to more than it was sent")
            operation = handle.log.get(connection.to_answer)
            field = STREAM_FIELDS[operation.method]
            if reply.WhichOneof("reply") != field:
                raise errors.Internal(f"the server's reply to {operation.method} is of another")
            inner = getattr(reply, field)
            connection.to_answer += 1
            handle.standing = operation.sequence
            handle.unanswered.clear()
            self._progress = time.monotonic()
            handle.heard(self._progress)
            while self._pending and self._pending[0].sequence <= operation.sequence:
                done.append(self._pending.popleft())
            handle.log.release(operation)
            handle.log.settle(operation.sequence, inner.status.durable_sequence)
            self._look_up()
        for pending in done:
            pending.resolve(operation.sequence, inner)

    def _fail(self, error: BaseException) -> None:
        """Ends the stream: the first pending operation failed, or nobody knows."""
        with self._changed:
            self._open = False
            self.failure = error
            pending = list(self._pending)
            self._pending.clear()
            if pending:
                dropped = self._handle.log.drop_after(pending[0].sequence - 1)
                self._handle.leave_open(dropped, error)
            self._changed.notify_all()
        for index, each in enumerate(pending):
            behind = errors.Cancelled(
                f"operation {pending[0].sequence}, before this one, failed: {error}"
            )
            each.future.set_exception(behind if index else error)

    def _watch(self) -> None:
        """Cancels a connection on which no reply comes in time."""
        if self._timeout is None:
            return
        wait = self._timeout
        while not self._done.wait(wait):
            with self._changed:
                overdue = self._awaited() and self._remaining() <= 0
                if overdue and self._connection is not None:
                    self._connection.call.cancel()
                # Nothing can be overdue before.
                wait = self._timeout if overdue or not self._awaited() else self._remaining()

    def _awaited(self) -> bool:
        """Whether a reply is waited for."""
        return bool(self._pending) or self._fell_back

    def _remaining(self) -> float:
        """Seconds until what is awaited is overdue."""
        if self._timeout is None:
            return math.inf
        return self._progress + self._timeout - time.monotonic()
