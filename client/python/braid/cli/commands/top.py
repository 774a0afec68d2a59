"""`braid top`: a live view of a server, for a terminal."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from braid.cli import errors, options, settings
from braid.cli.options import Flags, Number, option, pass_flags
from braid.cli.output import print_json, print_line

if TYPE_CHECKING:
    import braid
    from braid.cli.top.samples import Sample
    from braid.cli.top.view import View

_MIN_CALL_SECONDS = 5.0

EPILOG = """\
\b
Rates and times cover the time since the previous sample. --metrics adds
p50 and p99 of requests, memory of devices and loss of trainers.

Keys: q quits. Without a terminal on stdout, braid top does the same as
with --once.
"""


@options.command(
    "top",
    help="Show what a server is doing: utilization of its devices, requests of its models, trainers "
    "and jobs.",
    short_help="Show devices, models, trainers and jobs, live",
    epilog=EPILOG,
)
@option("--once", is_flag=True, help="Print the tables after one interval and exit")
@option(
    "--interval", type=Number(float, 0.1), default=1.0, show_default=True, metavar="SECONDS",
    help="Time between two samples",
)  # fmt: skip
@option(
    "--metrics", metavar="HOST:PORT",
    help="Also read the server's metrics port, at this address or URL [default: not read]",
)  # fmt: skip
@pass_flags
def command(flags: Flags, once: bool, interval: float, metrics: str | None) -> int:
    with settings.connect(flags) as client:
        _try_once(client)
        timeout = settings.load(flags).get("timeout") or max(interval, _MIN_CALL_SECONDS)
        source = _Source(client, metrics, timeout, interval)
        if flags.json:
            while True:
                _print_json(source.wait())
                if once:
                    return 0
        if once or not _screen_is_usable():
            from braid.cli.top import tables

            for line in tables.plain_lines(source.wait()):
                print_line(line)
            return 0
        return _show(source, client._channel.address)


def _try_once(client: braid.Client) -> None:
    """Makes calls fail at once if the server is unreachable: this command retries by itself."""
    from braid._channel import RetryPolicy

    client._channel.retry = RetryPolicy(attempts=1)


def _screen_is_usable() -> bool:
    try:
        from braid.cli.top import terminal
    except ImportError:  # No termios, as on Windows.
        return False
    return terminal.is_usable()


class _Source:
    """Takes samples of a server, an interval apart. Not thread-safe."""

    def __init__(
        self, client: braid.Client, metrics: str | None, timeout: float, interval: float
    ) -> None:
        self.interval = interval
        self._client, self._metrics, self._timeout = client, metrics, timeout
        self._before: Sample | None = None

    def take(self) -> View:
        """Returns the figures since the last call. Raises BraidError without a server."""
        from braid.cli.top import samples, view

        now = samples.take(self._client, self._metrics, self._timeout)
        made = view.make(self._before, now)
        self._before = now
        return made

    def wait(self) -> View:
        """Returns the figures of one interval, after it."""
        if self._before is None:
            self.take()
        time.sleep(self.interval)
        return self.take()


def _print_json(view: View) -> None:
    print_json(dataclasses.asdict(view))
    sys.stdout.flush()


class _Sampler(threading.Thread):
    """Takes samples until `end`, and calls `on_change` after each. Thread-safe."""

    def __init__(self, source: _Source, on_change: Callable[[], None]) -> None:
        super().__init__(name="braid-top", daemon=True)
        self._source, self._on_change = source, on_change
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._view: View | None = None
        # Why the newest figures are old, or "".
        self._status = ""
        # Error that ended the thread.
        self._error: Exception | None = None

    def run(self) -> None:
        from braid.errors import Cancelled, DeadlineExceeded, Unavailable

        away_since: float | None = None
        while not self._ended.is_set():
            started = time.monotonic()
            view: View | None = None
            status, fatal = "", None
            try:
                view = self._source.take()
                away_since = None
            except Cancelled:  # The client was closed.
                return
            except (Unavailable, DeadlineExceeded) as error:
                away_since = started if away_since is None else away_since
                seconds = time.monotonic() - away_since
                status = f"no answer for {seconds:.0f} s, trying again ({error.message})"
            except Exception as error:  # The main thread reports it.
                fatal = error
            with self._lock:
                self._view = view or self._view
                self._status, self._error = status, fatal
            self._on_change()
            if fatal is not None:
                return
            self._ended.wait(max(self._source.interval - (time.monotonic() - started), 0.0))

    def latest(self) -> tuple[View | None, str]:
        """Returns the newest figures and what is wrong. Raises what ended the thread."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._view, self._status

    def end(self) -> None:
        self._ended.set()


def _show(source: _Source, address: str) -> int:
    """Shows the figures until the user ends the program. Returns the exit code."""
    from braid.cli.top import tables
    from braid.cli.top.terminal import Terminal

    with Terminal() as terminal:
        sampler = _Sampler(source, terminal.wake)
        sampler.start()
        try:
            while True:
                view, status = sampler.latest()
                width, height = terminal.size()
                terminal.draw(
                    tables.screen_lines(
                        view, address, status, width, height, ascii_only=terminal.ascii_only
                    )
                )
                if not terminal.wait():
                    return 0
        finally:
            sampler.end()
