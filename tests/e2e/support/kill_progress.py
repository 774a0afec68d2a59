"""Progress of long runs that kill servers."""

from __future__ import annotations

import time

SECONDS = 10


class Progress:
    """Prints progress lines at intervals."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._began = self._last_printed = time.monotonic()

    def __call__(self, count: int, operations: int) -> None:
        now = time.monotonic()
        if now - self._last_printed >= SECONDS or count == self._wanted:
            self._last_printed = now
            print(
                f"{now - self._began:6.0f} s  {count} of {self._wanted} kills, "
                f"{operations} operations",
                flush=True,
            )
