"""Full-screen terminal: its keys, signals and screen, which it restores at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.text import Text

_ENTER = "\x1b[?1049h\x1b[?25l"  # Alternate screen, no cursor.
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[2K", "\x1b[J"
_COLUMNS, _LINES = 80, 24
_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP,
)  # fmt: skip


class Terminal:
    """The terminal of stdout and, if stdin is one too, its keys.

    A context manager, for the main thread. On exit, the terminal is as before. Only `wake` may be
    called by other threads.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._keys: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._saved: list[Any] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Terminal:
        with contextlib.ExitStack() as stack:
            self._reader, self._writer = socket.socketpair()
            for end in (self._reader, self._writer):
                end.setblocking(False)
                stack.callback(end.close)
            # Signals arrive as bytes, between two screens.
            before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            stack.callback(signal.set_wakeup_fd, before)
            for number in _SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, _ignore))
            self._enter_screen()
            stack.callback(self._leave_screen)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def ascii_only(self) -> bool:
        """True if the terminal cannot show block characters."""
        return self.console.options.ascii_only

    def size(self) -> tuple[int, int]:
        """Returns the number of columns and lines."""
        size = os.get_terminal_size(sys.stdout.fileno())
        # A serial line does not know its size.
        columns, lines = size.columns or _COLUMNS, size.lines or _LINES
        # Otherwise rich prefers the variables COLUMNS and LINES, which a change leaves as they were.
        self.console.size = ConsoleDimensions(columns, lines)
        return columns, lines

    def draw(self, lines: Sequence[Text]) -> None:
        """Replaces the screen by `lines`, which must fit on it."""
        with self.console.capture() as capture:
            for line in lines:
                self.console.print(line, end="\n", no_wrap=True, overflow="crop", crop=True)
        rows = capture.get().split("\n")[:-1]
        # One write, so that no half of a screen is seen. Nothing follows the last line, because a
        # new line at the bottom would scroll.
        _write(_HOME + "\n".join(f"{_CLEAR_LINE}{row}" for row in rows) + _CLEAR_BELOW)

    def wake(self) -> None:
        """Makes `wait` return. Thread-safe."""
        with contextlib.suppress(OSError):  # Full: it returns anyway. Closed: nobody waits.
            self._writer.send(b"\0")

    def wait(self) -> bool:
        """Waits for a key, a signal or `wake`. Returns False if the user ends the program.

        Raises KeyboardInterrupt for Ctrl-C, and SystemExit for SIGTERM and SIGHUP. Ctrl-Z suspends
        the program.
        """
        sources: list[Any] = [self._reader, *([] if self._keys is None else [self._keys])]
        ready, _, _ = select.select(sources, [], [])
        if self._keys in ready:
            keys = os.read(self._keys, 64) if self._keys is not None else b""
            if not keys or b"q" in keys.lower():
                return False
        if self._reader in ready:
            for number in self._reader.recv(64):
                if number == signal.SIGINT:
                    raise KeyboardInterrupt
                if number in (signal.SIGTERM, signal.SIGHUP):
                    raise SystemExit(128 + number)
                if number == signal.SIGTSTP:
                    self._suspend()
        return True

    def _suspend(self) -> None:
        self._leave_screen()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter_screen()

    def _enter_screen(self) -> None:
        if self._keys is not None:
            self._saved = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        _write(_ENTER)

    def _leave_screen(self) -> None:
        with contextlib.suppress(OSError):  # The terminal may be gone.
            _write(_LEAVE)
        if self._keys is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._saved)


def is_usable() -> bool:
    """Returns True if stdout is a terminal that can show a screen."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _ignore(number: int, frame: Any) -> None:
    """Handles a signal whose number the wakeup descriptor reports."""


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
