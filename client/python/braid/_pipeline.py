"""Pipeline of operations over the method Stream, with reconnection and replay."""

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
from braid._handle import Handle, failure_of
from braid._protocol import TRAINING
from braid._replay import Operation
from braid._requests import STREAM_FIELDS

Result = Callable[[Any], Any]
LostReply = Callable[[int, Any], Any]


@dataclass
class _Pending:
    """Operation whose future is not done. lost: creates the result if only the reply is lost."""

    sequence: int
    future: Future[Any]
    result: Result
    lost: LostReply | None

    def resolve(self, sequence: int, reply: Any) -> None:
        """Completes the future from the reply to this operation or, if lost, a later one."""
        try:
            if sequence == self.sequence:
                self.future.set_result(self.result(reply))
            else:
                assert self.lost is not None
                self.future.set_result(self.lost(self.sequence, reply.status))
        except Exception as error:
            self.future.set_exception(error)


class _Connection:
    """State of one call of the method Stream."""

    def __init__(self, first: int) -> None:
        self.to_send = first
        self.to_acknowledge = first
        self.barrier = 0  # Sends nothing until the reply to this operation.
        self.call: Any = None
        self.over = False
        self.error: BaseException | None = None  # Error of rebuilding a request.


class Pipeline:
    """Sends submitted operations and completes their futures.

    `next_sequence` and `submit` must be called by one thread at a time. One internal thread
    connects and reads replies; `braid._replay` decides what it replays. A second one enforces the
    timeout. A gRPC thread sends.
    """

    def __init__(self, handle: Handle, depth: int, timeout: float | None) -> None:
        """Creates a pipeline. timeout: maximum seconds between replies; None: no limit."""
        self._handle = handle
        self._depth = depth
        self._timeout = timeout
        self._changed = threading.Condition()
        # Guarded by _changed, like the handle's state.
        self._pending: deque[_Pending] = deque()
        self._connection: _Connection | None = None
        self._sent = 0  # Last sequence number sent since the last replay began.
        self._progress = 0.0  # Time of the last reply, or of the first pending operation.
        self._open = False
        self._aborted = False  # An exception left the stream's block.
        self._replaying = False  # A reader detected a restart and waits for the replay.
        self.failure: BaseException | None = None
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"braid-stream-{handle.name}", daemon=True)
            for target in (self._run, self._watch)
        ]

    def start(self) -> None:
        """Starts the threads. Must be called once."""
        self._sent = self._handle.applied
        self._open = True
        for thread in self._threads:
            thread.start()

    def next_sequence(self) -> int:
        """Returns the sequence number for the next operation. Raises the pipeline's failure."""
        with self._changed:
            self._check_open()
            return self._handle.log.last + 1

    def submit(self, operation: Operation, result: Result, lost: LostReply | None) -> Future[Any]:
        """Waits for room, then submits `operation`.

        result: converts the reply to the future's result.
        lost: creates the result from the operation's number and a later operation's status; None
            if the reply cannot be lost.
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
        """Stops accepting operations, and waits for those in flight."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._threads[0].join()

    def abort(self) -> None:
        """Cancels all operations in flight."""
        with self._changed:
            self._open = False
            self._aborted = True
            if self._connection is not None:
                self._connection.call.cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def last_acknowledged(self) -> int:
        """Returns the last acknowledged sequence number; see `Handle.last_acknowledged`."""
        with self._changed:
            return self._last_acknowledged()

    def resync(self, deadline: float | None) -> float:
        """Waits for a replay of lost operations; see `Handle.resync`.

        Raises the pipeline's failure.
        """
        handle = self._handle
        while True:
            target = self.last_acknowledged()
            info, asked = handle.locate(deadline)
            if info.applied_sequence >= target:
                return asked
            with self._changed:
                self._check_open()
                if handle.applied >= target:
                    self._start_replay()
                done = self._changed.wait_for(
                    lambda: not (self._open and (self._replaying or handle.applied < target)),
                    None if deadline is None else remaining(deadline),
                )
            if not done:
                raise errors.DeadlineExceeded("operations lost by the server are still replayed")

    def _last_acknowledged(self) -> int:
        return self._pending[0].sequence - 1 if self._pending else self._handle.log.last

    def _notify_position(self) -> None:
        """Notifies waiting threads of the trainer's position."""
        if self._handle.applied >= self._last_acknowledged():
            self._replaying = False
        self._changed.notify_all()

    def _start_replay(self) -> None:
        """Starts a replay of lost operations, even without pending operations."""
        self._replaying = True
        self._progress = time.monotonic()
        if self._connection is not None:
            self._connection.call.cancel()
        self._changed.notify_all()

    def _wait_for_room(self, size: int) -> None:
        """Waits until fewer than `depth` operations are in flight and the buffer has room."""
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
        # No replies are due that could report a checkpoint, so this requests one.
        durable = self._handle.make_durable(math.inf if self._timeout is None else self._timeout)
        with self._changed:
            log.discard(self._handle.applied, durable)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self._open:
            raise RuntimeError("the stream is not open (use it in its `with` block)")

    # Only the pipeline's own threads and gRPC threads call the following methods.

    def _run(self) -> None:
        """Keeps a connection while there are operations to send or replies due."""
        ended: errors.BraidError | None = None
        attempt = 0
        try:
            while self._wait_for_work(attempt, ended):
                progress = self._progress
                ended = self._run_connection(ended)
                if isinstance(ended, errors.Unavailable):
                    self._handle.on_disconnect()
                    self._handle.channel.outage.on_wait(ended)
                attempt = 0 if ended is None else attempt + 1
                if self._progress > progress:
                    attempt = min(attempt, 1)
        except BaseException as error:
            self._fail(error)
        self._done.set()

    def _wait_for_work(self, attempt: int, ended: errors.BraidError | None) -> bool:
        """Waits until there is something to send. Returns False if the stream has ended.

        Waits for the backoff before another attempt. Raises `ended` after the timeout.
        """
        with self._changed:
            if attempt > 0:
                backoff = self._handle.channel.retry.backoff(attempt)
                self._changed.wait_for(lambda: self._aborted, backoff)
            self._changed.wait_for(
                lambda: self._aborted or not self._open or self._pending or self._replaying
            )
            if self._aborted:
                raise errors.Cancelled("the stream was aborted")
            if self._reply_due() and ended is not None and self._remaining() <= 0:
                raise ended
            return bool(self._pending) or (self._open and self._replaying)

    def _run_connection(self, ended: errors.BraidError | None) -> errors.BraidError | None:
        """Runs one connection, after a previous one that `ended` with an error, or None.

        Returns a retryable error, or None. Raises other errors.
        """
        handle = self._handle
        first = handle.applied + 1
        if ended is not None or self._replaying:
            try:
                info = handle.info(max(self._remaining(), 0.0), attempts=1)
            except errors.Unavailable as unreachable:
                return unreachable
            handle.check_operator(info)
            own = isinstance(ended, errors.FailedPrecondition)
            if own and (handle.belongs_to_job or info.applied_sequence == handle.applied):
                asked = self._pending[0].sequence if self._pending else 0
                failed = handle.log.get(first)
                raise failure_of(ended, failed, failed if first == asked else None)
            first = _replay.resume_at(
                info, handle.log, handle.applied, self._sent, handle.restarted
            )
            with self._changed:
                if first <= handle.applied:
                    handle.applied = self._sent = first - 1
                self._notify_position()
        return self._exchange(_Connection(first))

    def _exchange(self, connection: _Connection) -> errors.BraidError | None:
        channel = self._handle.channel
        call = channel.open_stream(TRAINING["Stream"], self._requests(connection))
        with self._changed:
            connection.call = call
            self._connection = connection
            if self._aborted:
                call.cancel()
        ended: errors.BraidError | None = None
        try:
            for reply in call:
                self._on_reply(connection, reply)
        except grpc.RpcError as error:
            ended = errors.from_rpc_error(error, 1, channel.address)
        finally:
            with self._changed:
                self._connection = None
                connection.over = True
                self._changed.notify_all()
            call.cancel()  # No-op if the call has ended.
        if connection.error is not None:
            raise connection.error
        return self._check_end(ended)

    def _check_end(self, ended: errors.BraidError | None) -> errors.BraidError | None:
        """Returns the retryable error that ended a connection, or None. Raises other errors."""
        with self._changed:
            if self._aborted:
                raise errors.Cancelled("the stream was aborted")
            if self._reply_due() and self._remaining() <= 0 and isinstance(ended, errors.Cancelled):
                raise errors.DeadlineExceeded(f"no reply in {self._timeout} seconds")
            if self._replaying and isinstance(ended, errors.Cancelled):
                return errors.Unavailable("the server restarted")
            if ended is None and self._pending:
                return errors.Unavailable("the server ended the stream")
        if isinstance(ended, errors.Aborted):
            raise _replay.with_other_client_hint(ended)
        if ended is None or isinstance(ended, (errors.Unavailable, errors.FailedPrecondition)):
            return ended
        raise ended

    def _requests(self, connection: _Connection) -> Iterator[bytes]:
        """Yields a connection's requests when they are due. A gRPC thread iterates it."""
        log = self._handle.log

        def due() -> bool:
            return connection.to_acknowledge > connection.barrier and connection.to_send <= log.last

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
                    # The server records only its last reply, and this one must not be lost.
                    connection.barrier = operation.sequence
            try:
                payload = operation.framed()
            except BaseException as error:
                connection.error = error
                return
            yield payload

    def _on_reply(self, connection: _Connection, reply: Any) -> None:
        handle = self._handle
        done = []
        with self._changed:
            if connection.to_acknowledge >= connection.to_send:
                raise errors.Internal("the server sent more replies than it received requests")
            operation = handle.log.get(connection.to_acknowledge)
            field = STREAM_FIELDS[operation.method]
            if reply.WhichOneof("reply") != field:
                raise errors.Internal(
                    f"reply: '{reply.WhichOneof('reply')}' from the server (expected '{field}')"
                )
            inner = getattr(reply, field)
            connection.to_acknowledge += 1
            handle.applied = operation.sequence
            handle.unacknowledged.clear()
            self._progress = time.monotonic()
            handle.on_contact(self._progress)
            while self._pending and self._pending[0].sequence <= operation.sequence:
                done.append(self._pending.popleft())
            handle.log.release(operation)
            handle.log.discard(operation.sequence, inner.status.durable_sequence)
            self._notify_position()
        for pending in done:
            pending.resolve(operation.sequence, inner)

    def _fail(self, error: BaseException) -> None:
        """Ends the stream after a failure or an unknown outcome of the first pending operation."""
        with self._changed:
            self._open = False
            self.failure = error
            pending = list(self._pending)
            self._pending.clear()
            if pending:
                dropped = self._handle.log.drop_after(pending[0].sequence - 1)
                self._handle.record_unacknowledged(dropped, error)
            self._changed.notify_all()
        for index, each in enumerate(pending):
            behind = errors.Cancelled(
                f"the earlier operation {pending[0].sequence} failed: {error}"
            )
            each.future.set_exception(behind if index else error)

    def _watch(self) -> None:
        """Cancels the connection if no reply arrives within the timeout."""
        if self._timeout is None:
            return
        wait = self._timeout
        while not self._done.wait(wait):
            with self._changed:
                overdue = self._reply_due() and self._remaining() <= 0
                if overdue and self._connection is not None:
                    self._connection.call.cancel()
                # Sleeps until the next possible timeout.
                wait = self._timeout if overdue or not self._reply_due() else self._remaining()

    def _reply_due(self) -> bool:
        """Returns True if a reply is due."""
        return bool(self._pending) or self._replaying

    def _remaining(self) -> float:
        """Returns the seconds until the timeout of the next reply."""
        if self._timeout is None:
            return math.inf
        return self._progress + self._timeout - time.monotonic()
