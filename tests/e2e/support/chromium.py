"""Pages in headless Chromium, which it drives through a pipe with the DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from e2e.support.polling import wait_until

PROGRAM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
MISSING = f"no {PROGRAM}: apt-get install chromium, or set CHROMIUM to the program"
_SECONDS = 60
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """A page in a Chromium of its own. A context manager that ends it.

    problems: errors of the page's code, failed requests, and messages of the console that are
        errors, such as violations of its Content-Security-Policy.
    requested: URLs of all requests.
    """

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.problems: list[str] = []
        self.requested: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        requests, self._writer = _pipe()
        self._reader, replies = _pipe()
        command = [str(PROGRAM), *_FLAGS, f"--user-data-dir={self._profile.name}"]
        # Chromium reads requests from descriptor 3 and writes replies to 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{requests} 4>&{replies}', "bash", *command],
            pass_fds=(requests, replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(requests)
        os.close(replies)
        self._received = b""
        self._calls = 0
        self._session: str | None = None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._writer)
        os.close(self._reader)
        # Its children are in the same process group.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_SECONDS)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol. Raises RuntimeError with its error."""
        self._calls += 1
        request: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            request["sessionId"] = self._session
        os.write(self._writer, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            message = self._receive(deadline)
            if message.get("id") == self._calls:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._note(message)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression, or of its promise when that is settled."""
        reply = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(_problem(reply["exceptionDetails"]))
        return reply["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Returns when a JavaScript expression is true."""
        wait_until(lambda: self.evaluate(expression) is True, _SECONDS)

    def table(self, section: str) -> list[dict[str, str]]:
        """Returns the rows of the table in the element of this ID, each as text by heading."""
        return self.evaluate(
            f"""(() => {{
              const rows = [...document.querySelectorAll("#{section} tr")].map(
                (row) => [...row.cells].map((cell) => cell.textContent));
              return rows.slice(1).map((row) =>
                Object.fromEntries(row.map((text, column) => [rows[0][column], text])));
            }})()"""
        )

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def set_dark(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Writes a picture of the whole page as PNG."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._reader], [], [], max(deadline - time.monotonic(), 0))
            received = os.read(self._reader, 1 << 20) if ready else b""
            if not received:
                raise RuntimeError(f"{PROGRAM} has {'ended' if ready else 'not replied'}")
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(_problem(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])


def _pipe() -> list[int]:
    """Returns the ends of a pipe for reading and writing, above the descriptors of Chromium's."""
    ends = []
    for low in os.pipe():
        ends.append(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 10))
        os.close(low)
    return ends


def _problem(details: dict[str, Any]) -> str:
    return details.get("exception", {}).get("description") or details["text"]
