"""Requests on their way from one thread to the one in which gRPC sends them."""

from __future__ import annotations

import threading
from typing import Any


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
