"""Waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Returns when `condition` holds; fails if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def settled(value: Callable[[], Any], seconds: float = 1) -> Any:
    """Returns the result of `value` after it has not changed for `seconds`."""
    last, since = value(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.02)
        if (now := value()) != last:
            last, since = now, time.monotonic()
    return last
