"""The way to the server: one gRPC channel, deadlines, and calls sent again when they got lost."""

from __future__ import annotations

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
from braid._protocol import Method
from braid._security import Security


@dataclass(frozen=True)
class RetryPolicy:
    """How often a call is sent at most, and the seconds between: doubled each time, less jitter."""

    attempts: int = 5
    initial_backoff: float = 0.1
    max_backoff: float = 2.0

    def backoff(self, attempt: int) -> float:
        """Seconds to wait after `attempt` (from 1) failed."""
        doubled = self.initial_backoff * 2 ** min(attempt - 1, 30)
        longest: float = min(doubled, self.max_backoff)
        return longest * random.uniform(0.5, 1.0)


class Feed:
    """An iterator over what another thread puts into it, one ahead. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Any] = []
        self._closed = False

    def put(self, request: Any) -> bool:
        """Waits until the one before is being sent. False if the feed is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._waiting)
            if self._closed:
                return False
            self._waiting.append(request)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Ends the feed, once what was put is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            if not self._waiting:
                raise StopIteration
            self._changed.notify_all()
            return self._waiting.pop()


class Channel:
    """A connection to one server. Thread-safe.

    Only UNAVAILABLE is sent again: the server was not reached, or the connection broke and it may
    have been. Methods that change something recognize a call that they have applied before, by
    its sequence number or request id, provided that the bytes are the same; so a request is
    serialized once for all its attempts.
    """

    def __init__(
        self,
        address: str,
        timeout: float | None,
        max_message_bytes: int | None,
        security: Security | None = None,
    ) -> None:
        limit = -1 if max_message_bytes is None else max_message_bytes
        security = security or Security()
        self.address = address
        self.retry = RetryPolicy()
        self._timeout = timeout
        self._metadata = security.metadata()
        options = [
            ("grpc.max_send_message_length", limit),
            ("grpc.max_receive_message_length", limit),
            # A server that comes back is found within the retries, not a second later.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        credentials = security.credentials()
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )

    def close(self) -> None:
        """Ends calls in flight with Cancelled and closes the connection."""
        self._channel.close()

    def call(
        self,
        method: Method,
        request: Any,
        timeout: float | None = None,
        *,
        attempts: float | None = None,
    ) -> Any:
        """Calls a method that has one reply, and returns it.

        request: a message, or one serialized.
        timeout: seconds for all attempts together. None: the channel's; math.inf: no limit.
        attempts: how often it is sent at most. None: as `retry` says; math.inf: no limit.
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
        """Calls a method that streams its reply, and returns what `receive` makes of it.

        When the stream breaks, `receive` is given a new one from the start.
        """
        stub = self._channel.unary_stream(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )

        def send(payload: bytes, timeout: float | None) -> Any:
            stream = stub(payload, timeout=timeout, metadata=self._metadata)
            try:
                return receive(stream)
            finally:
                stream.cancel()  # Does nothing to one that has ended.

        return self._attempt(send, request, timeout, None)

    def call_feeding(
        self, method: Method, requests: Iterable[bytes], timeout: float | None = None
    ) -> Any:
        """Calls a method that takes a stream and has one reply, and returns it. Sent once.

        `requests`, serialized, is iterated in the calling thread; what it raises ends the call and is raised.
        """
        feed = Feed()
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
            call.cancel()  # Does nothing to one that has ended.
            feed.close()
        raise failure

    def open_stream(self, method: Method, payloads: Iterator[bytes]) -> Any:
        """Starts a call that streams both ways, and returns gRPC's object for it.

        It raises grpc.RpcError. `payloads`, serialized, is iterated by a thread of gRPC's.
        """
        stub = self._channel.stream_stream(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )
        return stub(payloads, metadata=self._metadata)

    def seconds(self, timeout: float | None) -> float | None:
        """The seconds that a call with this `timeout` has; None: no limit."""
        seconds = self._timeout if timeout is None else timeout
        return None if seconds is None or math.isinf(seconds) else seconds

    def deadline(self, timeout: float | None) -> float | None:
        """When a call with this `timeout` that begins now ends, by time.monotonic."""
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
                return send(payload, timeout=left)
            except grpc.RpcError as error:
                failure = errors.from_rpc_error(error, attempt, self.address)
            backoff = self.retry.backoff(attempt)
            too_late = deadline is not None and time.monotonic() + backoff >= deadline
            if not isinstance(failure, errors.Unavailable) or attempt >= attempts or too_late:
                raise failure
            time.sleep(backoff)


def remaining(deadline: float | None) -> float:
    """The timeout of a call that has to end at `deadline`."""
    return math.inf if deadline is None else max(deadline - time.monotonic(), 0.0)
