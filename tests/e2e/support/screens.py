"""Programs in a pseudo-terminal: what they draw, and the keys and signals that they get."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any

SECONDS = 60
_ENTERS_SCREEN, _LEAVES_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_HOME = "\x1b[H"
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Screen:
    """A process in a pseudo-terminal of its own. A context manager that ends it.

    output: all that it wrote so far.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 80,
        lines: int = 24,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        self.output = ""
        self._resize(columns, lines)
        self.modes_before = termios.tcgetattr(slave)
        variables = {
            key: value for key, value in os.environ.items()
            if key not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        }  # fmt: skip
        # setsid makes the terminal the controlling one, so that Ctrl-C becomes a signal, and then
        # becomes the command. `preexec_fn` can hang in a process with threads.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**variables, "TERM": "xterm-256color", **(environment or {})},
        )
        self._slave = slave

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)
        os.close(self._slave)
        os.close(self._master)

    @property
    def raw_screen(self) -> str:
        """The last complete screen with its colors. Empty if nothing was drawn."""
        screens = self.output.split(_HOME)[1:]
        complete = [screen for screen in screens if "\x1b[J" in screen]
        return complete[-1].partition("\x1b[J")[0] if complete else ""

    @property
    def lines(self) -> list[str]:
        """Lines of the last complete screen, without colors."""
        return [line.rstrip() for line in plain(self.raw_screen).split("\r\n")]

    @property
    def text(self) -> str:
        """The last complete screen, without colors."""
        return "\n".join(self.lines)

    @property
    def modes(self) -> list[Any]:
        """Settings of the terminal, as termios.tcgetattr returns them."""
        return termios.tcgetattr(self._slave)

    @property
    def is_on_screen(self) -> bool:
        """True if the process draws on the alternate screen."""
        return self.output.rfind(_ENTERS_SCREEN) > self.output.rfind(_LEAVES_SCREEN)

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Reads until `condition` is true. Fails if it is not after SECONDS, or the process ended."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.output
            if not self._read(0.1):
                assert self.process.poll() is None or condition(), self.output

    def wait(self) -> int:
        """Waits for the end of the process. Returns its exit code."""
        self.wait_for(lambda: self.process.poll() is not None)
        while self._read(0):
            pass
        return self.process.returncode

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Changes the size of the terminal, and tells the process."""
        self._resize(columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def _resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        self.output += os.read(self._master, 1 << 16).decode(errors="replace")
        return True


def plain(text: str) -> str:
    """Returns text without control sequences."""
    return _CONTROLS.sub("", text)
