"""Samples of /status.json, and a server of the status page with samples that a test chooses."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from e2e.support.server import ROOT

FILES = ROOT / "server/telemetry/status_page"
PATHS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
}
# Upper bounds of the buckets of a sample that the functions below make, in seconds.
BOUNDS = [0.001, 0.002, 0.005, 0.01, 0.1]


def read(metrics_url: str) -> dict[str, Any]:
    """Returns /status.json of a server."""
    url = metrics_url.removesuffix("metrics") + "status.json"
    with urllib.request.urlopen(url, timeout=30) as reply:
        assert reply.headers["Content-Type"] == "application/json"
        return json.load(reply)


def sample(uptime: float, **parts: Any) -> dict[str, Any]:
    """Returns a sample of a server without models, trainers and jobs, except `parts`."""
    return {
        "version": "0.1.0", "ready": True, "reason": "", "uptime_seconds": uptime,
        "requests_in_flight": 0, "devices": [device("cpu:0")], "duration_bounds_seconds": BOUNDS,
        "models": [], "trainers": [], "jobs": [], "job_counts": {},
        "jobs_error": "", **parts,
    }  # fmt: skip


def device(name: str, **parts: Any) -> dict[str, Any]:
    return {
        "name": name, "kind": "cpu", "hardware": "", "healthy": True,
        "busy_seconds": {"forward": 0.0, "backward": 0.0}, "rows": 0, "memory_bytes": 0,
        "memory_total_bytes": None, **parts,
    }  # fmt: skip


def model(name: str, durations: list[int] | None = None, **parts: Any) -> dict[str, Any]:
    """durations: requests by bucket, after the last bound too."""
    durations = durations or [0] * (len(BOUNDS) + 1)
    return {
        "name": name, "versions": [1], "requests": sum(durations), "failures": 0,
        "rows": sum(durations), "queue_rows": 0, "durations": durations, **parts,
    }  # fmt: skip


def trainer(name: str, **parts: Any) -> dict[str, Any]:
    return {
        "name": name, "model": "m", "failed": False, "step": 0, "loss": None, "lr": 0.1,
        "memory_bytes": 0, "devices": ["cpu:0"], **parts,
    }  # fmt: skip


def job(id: str, **parts: Any) -> dict[str, Any]:
    return {
        "id": id, "kind": "train", "model": "m", "state": "RUNNING", "rows": 0, "total_rows": 0,
        "step": 0, "loss": None, "rows_per_second": 0.0, **parts,
    }  # fmt: skip


class StatusServer:
    """Serves the page of server/telemetry/status_page without a Content-Security-Policy.

    reply: code and text of /status.json; a sample becomes JSON.
    reads: how often the page has read it.
    """

    def __init__(self, sample: dict[str, Any]) -> None:
        self.reply: tuple[int, str] = (200, "")
        self.reads = 0
        self.show(sample)
        self._server: ThreadingHTTPServer | None = None

    def show(self, sample: dict[str, Any]) -> None:
        self.reply = (200, json.dumps(sample))

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> StatusServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        status = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path in PATHS:
                    name, kind = PATHS[self.path]
                    self._answer(200, kind, (FILES / name).read_bytes())
                elif self.path == "/status.json":
                    status.reads += 1
                    code, text = status.reply
                    self._answer(code, "application/json", text.encode())
                else:
                    self._answer(404, "text/plain", b"not found\n")

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                with contextlib.suppress(ConnectionError):
                    self.send_response(code)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        return Handler
