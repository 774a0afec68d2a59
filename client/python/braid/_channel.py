"""gRPC channel to the server, with deadlines and retries."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from braid import errors
from braid._memory import reuse_freed_memory
from braid._protocol import Method
from braid._security import Security

_log = logging.getLogger("braid")
# Errors that the client may have raised without a reply.
_NO_REPLY = (errors.Unavailable, errors.DeadlineExceeded, errors.Cancelled)
# Restarts and reconnections that are shorter are not logged.
_SILENT_SECONDS = 1.0


@dataclass(frozen=True)
class RetryPolicy:
    """Maximum number of attempts, and backoff in seconds, doubled each time, with jitter."""

    attempts: int = 5
    initial_backoff: float = 0.1
    max_backoff: float = 2.0

    def backoff(self, attempt: int) -> float:
        """Returns the seconds to wait after attempt number `attempt` (from 1) failed."""
        doubled = self.initial_backoff * 2 ** min(attempt - 1, 30)
        longest: float = min(doubled, self.max_backoff)
        return longest * random.uniform(0.5, 1.0)


class Outage:
    """Logs once that callers wait for a server, and once that it answers again. Thread-safe."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        # Time of the first failure since the last reply.
        self._start: float | None = None
        self._logged = False

    def on_wait(self, failure: errors.BraidError) -> None:
        """Records a failure after which the caller tries again."""
        with self._lock:
            now = time.monotonic()
            self._start = now if self._start is None else self._start
            if self._logged or now - self._start < _SILENT_SECONDS:
                return
            self._logged = True
        reason = failure.message.removeprefix(f"{self._address}: ")
        _log.warning("%s: waiting for the server (%s)", self._address, reason)

    def on_reply(self) -> None:
        """Records that the server answered."""
        if self._start is None:  # Nearly always; spares the lock.
            return
        with self._lock:
            start, self._start = self._start, None
            logged, self._logged = self._logged, False
        if logged and start is not None:
            seconds = time.monotonic() - start
            _log.warning("%s: reconnected (after %.1f s)", self._address, seconds)


class _RequestFeed:
    """Iterator over requests from another thread, with a buffer of one. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Any] = []
        self._closed = False

    def put(self, request: Any) -> bool:
        """Waits until the buffer is empty, then adds `request`. Returns False if closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._waiting)
            if self._closed:
                return False
            self._waiting.append(request)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Ends the iterator after the buffered request."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> _RequestFeed:
        return self

    def __next__(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            if not self._waiting:
                raise StopIteration
            self._changed.notify_all()
            return self._waiting.pop()


class Channel:
    """Connection to one server. Thread-safe.

    Retries only UNAVAILABLE: the server was not reached, or the connection broke and the call may
    have been applied. Methods that change state recognize a retry by its sequence number or request
    ID if its bytes are the same, so a request is serialized once for all attempts.
    """

    def __init__(
        self,
        address: str,
        timeout: float | None,
        max_message_bytes: int | None,
        security: Security | None = None,
    ) -> None:
        reuse_freed_memory()
        limit = -1 if max_message_bytes is None else max_message_bytes
        security = security or Security()
        self.address = address
        self.retry = RetryPolicy()
        self.outage = Outage(address)
        self._timeout = timeout
        self._metadata = security.metadata()
        options = [
            ("grpc.max_send_message_length", limit),
            ("grpc.max_receive_message_length", limit),
            # Reconnects to a restarted server within the retries; gRPC's default is 1 s.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            # The client retries by itself. gRPC's own retries can lose a call that starts while the
            # server closes the connection: it never ends, not even at its deadline.
            ("grpc.enable_retries", 0),
        ]
        credentials = security.credentials()
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )

    def close(self) -> None:
        """Closes the connection. Calls in flight raise Cancelled."""
        self._channel.close()

    def call(
        self,
        method: Method,
        request: Any,
        timeout: float | None = None,
        *,
        attempts: float | None = None,
    ) -> Any:
        """Calls a unary method and returns its reply.

        request: a message, or a serialized one.
        timeout: seconds, including retries. None: the channel's timeout; math.inf: no limit.
        attempts: maximum number of attempts. None: that of `retry`; math.inf: no limit.
        """
        stub = self._channel.unary_unary(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )
        return self._attempt(partial(stub, metadata=self._metadata), request, timeout, attempts)

    def call_streaming(
        self,
        method: Method,
        request: Any,
        receive: Callable[[Iterator[Any]], Any],
        timeout: float | None = None,
    ) -> Any:
        """Calls a method with a streamed reply, and returns the result of `receive`.

        If the stream breaks, calls `receive` again with a new stream.
        """
        stub = self._channel.unary_stream(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )

        def send(payload: bytes, timeout: float | None) -> Any:
            stream = stub(payload, timeout=timeout, metadata=self._metadata)
            try:
                return receive(stream)
            finally:
                stream.cancel()  # No-op if the stream has ended.

        return self._attempt(send, request, timeout, None)

    def receive(
        self, method: Method, request: Any, timeout: float | None = None
    ) -> Iterator[Any]:
        """Calls a method with a streamed reply, and yields its messages. Does not retry."""
        stub = self._channel.unary_stream(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )
        stream = stub(
            request.SerializeToString(), timeout=self.seconds(timeout), metadata=self._metadata
        )
        try:
            for reply in stream:
                self.outage.on_reply()
                yield reply
        except grpc.RpcError as error:
            failure = errors.from_rpc_error(error, 1, self.address)
            if not isinstance(failure, _NO_REPLY):
                self.outage.on_reply()
            raise failure from None
        finally:
            stream.cancel()  # No-op if the stream has ended.

    def call_feeding(
        self, method: Method, requests: Iterable[bytes], timeout: float | None = None
    ) -> Any:
        """Calls a method with a streamed request and returns its reply. Does not retry.

        Iterates the serialized `requests` in the calling thread. Their exceptions end the call and
        propagate.
        """
        feed = _RequestFeed()
        stub = self._channel.stream_unary(
            method.path,
            request_serializer=None,
            response_deserializer=method.response.FromString,
        )
        call = stub.future(feed, timeout=self.seconds(timeout), metadata=self._metadata)
        call.add_done_callback(lambda _: feed.close())
        try:
            for request in requests:
                if not feed.put(request):
                    break
            feed.close()
            return call.result()
        except grpc.RpcError as error:
            failure = errors.from_rpc_error(error, 1, self.address)
        except grpc.FutureCancelledError:
            failure = errors.Cancelled("the call was cancelled")
        finally:
            call.cancel()  # No-op if the call has ended.
            feed.close()
        raise failure

    def open_stream(self, method: Method, payloads: Iterator[bytes]) -> Any:
        """Starts a bidirectional stream and returns gRPC's call object.

        The object raises grpc.RpcError. A gRPC thread iterates the serialized `payloads`.
        """
        stub = self._channel.stream_stream(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )
        return stub(payloads, metadata=self._metadata)

    def seconds(self, timeout: float | None) -> float | None:
        """Returns the effective timeout of a call in seconds; None: no limit."""
        seconds = self._timeout if timeout is None else timeout
        return None if seconds is None or math.isinf(seconds) else seconds

    def deadline(self, timeout: float | None) -> float | None:
        """Returns the deadline of a call that starts now, on the time.monotonic clock."""
        seconds = self.seconds(timeout)
        return None if seconds is None else time.monotonic() + seconds

    def _attempt(
        self,
        send: Callable[..., Any],
        request: Any,
        timeout: float | None,
        attempts: float | None,
    ) -> Any:
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        deadline = self.deadline(timeout)
        attempts = self.retry.attempts if attempts is None else attempts
        attempt = 0
        while True:
            attempt += 1
            left = None if deadline is None else deadline - time.monotonic()
            try:
                reply = send(payload, timeout=left)
                self.outage.on_reply()
                return reply
            except grpc.RpcError as error:
                failure = errors.from_rpc_error(error, attempt, self.address)
            if not isinstance(failure, _NO_REPLY):
                self.outage.on_reply()
            backoff = self.retry.backoff(attempt)
            too_late = deadline is not None and time.monotonic() + backoff >= deadline
            if not isinstance(failure, errors.Unavailable) or attempt >= attempts or too_late:
                raise failure
            self.outage.on_wait(failure)
            time.sleep(backoff)


def remaining(deadline: float | None) -> float:
    """Returns the timeout of a call that must end at `deadline`."""
    return math.inf if deadline is None else max(deadline - time.monotonic(), 0.0)
