"""Memory of large messages."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# Parameters of glibc's mallopt().
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Largest block that malloc() takes from its heap, and free memory that the heap keeps.
_MMAP_THRESHOLD = 256 << 20
_TRIM_THRESHOLD = 512 << 20


@functools.cache
def reuse_freed_memory() -> None:
    """Makes glibc's malloc() reuse the memory of large messages, in the whole process.

    By default it returns that memory to the system after each message. The page faults for the next
    message then take several times as long as copying it. Does nothing without glibc, or if the
    environment sets malloc's thresholds.
    """
    chosen = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
    if not sys.platform.startswith("linux") or any(name in os.environ for name in chosen):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has none
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
