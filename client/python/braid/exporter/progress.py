"""Progress of an export that takes longer than 2 s: on a terminal, or in the log."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

_SILENT_SECONDS = 2.0
_REDRAW_SECONDS = 1.0
_log = logging.getLogger("braid")


class _Progress:
    """Shows the current stage, from a thread of its own while a stage lasts."""

    def __init__(self, terminal: TextIO | None) -> None:
        """terminal: None: log stages at level INFO."""
        self._terminal = terminal
        self._lock = threading.Lock()
        self._stage = ""
        self._logged = ""
        self._visible = False
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="braid-export", daemon=True)
        self._thread.start()

    def on_stage(self, stage: str) -> None:
        with self._lock:
            self._stage = stage
            if self._visible:
                self._show()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        if self._terminal and self._visible:
            self._write("")

    def _redraw(self) -> None:
        seconds = _SILENT_SECONDS
        while not self._ended.wait(seconds):
            with self._lock:
                self._visible = True
                self._show()
            seconds = _REDRAW_SECONDS

    def _show(self) -> None:
        if self._terminal:
            seconds = time.monotonic() - self._start
            text = f"exporting: {self._stage} ({seconds:.0f} s)"
            self._write(text[: shutil.get_terminal_size().columns - 1])
        elif self._stage != self._logged:
            self._logged = self._stage
            _log.info("export: %s", self._stage)

    def _write(self, text: str) -> None:
        """Replaces the line on the terminal."""
        assert self._terminal
        self._terminal.write(f"\r\x1b[2K{text}")
        self._terminal.flush()


_current: ContextVar[_Progress | None] = ContextVar("braid_export", default=None)


@contextmanager
def reported() -> Iterator[None]:
    """Reports the stages that begin inside."""
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    progress = _Progress(terminal)
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)
        progress.end()


def stage(text: str) -> None:
    """Begins a stage of the export in this thread, for example "tracing forward and backward"."""
    progress = _current.get()
    if progress is not None:
        progress.on_stage(text)
