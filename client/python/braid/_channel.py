"""The way to the server: one gRPC channel, deadlines, and calls sent again when they got lost."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from braid import errors
from braid._protocol import Method


@dataclass(frozen=True)
class RetryPolicy:
    """How often a call is sent at most, and the seconds between: doubled each time, less jitter."""

    attempts: int = 5
    initial_backoff: float = 0.1
    max_backoff: float = 2.0

    def backoff(self, attempt: int) -> float:
        """Seconds to wait after `attempt` (from 1) failed."""
        longest: float = min(self.initial_backoff * 2 ** (attempt - 1), self.max_backoff)
        return longest * random.uniform(0.5, 1.0)


class Channel:
    """A connection to one server. Thread-safe.

    Only UNAVAILABLE is sent again: the server was not reached, or the connection broke and it may
    have been. Every method of the protocol that changes something recognizes a call that it has
    applied before, by its sequence number or request id, provided that the bytes are the same; so
    a request is serialized once for all its attempts.
    """

    def __init__(self, address: str, timeout: float | None, max_message_bytes: int | None) -> None:
        limit = -1 if max_message_bytes is None else max_message_bytes
        self.address = address
        self.retry = RetryPolicy()
        self._timeout = timeout
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", limit),
                ("grpc.max_receive_message_length", limit),
                # A server that comes back is found within the retries, not a second later.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 2000),
            ],
        )

    def close(self) -> None:
        """Ends calls in flight with Cancelled and closes the connection."""
        self._channel.close()

    def call(
        self, method: Method, request: Any, timeout: float | None = None, retry: bool = True
    ) -> Any:
        """Calls a method that has one reply, and returns it.

        timeout: seconds for all attempts together. None: the channel's; math.inf: no limit.
        retry: send again after UNAVAILABLE.
        """
        stub = self._channel.unary_unary(
            method.path, request_serializer=None, response_deserializer=method.response.FromString
        )
        return self._attempt(stub, request, timeout, retry)

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
            stream = stub(payload, timeout=timeout)
            try:
                return receive(stream)
            finally:
                stream.cancel()  # Does nothing to one that has ended.

        return self._attempt(send, request, timeout, retry=True)

    def _attempt(
        self, send: Callable[..., Any], request: Any, timeout: float | None, retry: bool
    ) -> Any:
        payload = request.SerializeToString()
        deadline = self._deadline(timeout)
        attempts = self.retry.attempts if retry else 1
        attempt = 0
        while True:
            attempt += 1
            remaining = None if deadline is None else deadline - time.monotonic()
            try:
                return send(payload, timeout=remaining)
            except grpc.RpcError as error:
                failure = errors.from_rpc_error(error, attempt, self.address)
            backoff = self.retry.backoff(attempt)
            too_late = deadline is not None and time.monotonic() + backoff >= deadline
            if not isinstance(failure, errors.Unavailable) or attempt >= attempts or too_late:
                raise failure
            time.sleep(backoff)

    def _deadline(self, timeout: float | None) -> float | None:
        seconds = self._timeout if timeout is None else timeout
        if seconds is None or math.isinf(seconds):
            return None
        return time.monotonic() + seconds
