"""A Prometheus server on the loopback interface, for tests."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from e2e.support.polling import wait_until
from e2e.support.server import ROOT

BINARY = ROOT / "build/tools/prometheus"
START_SECONDS = 30
STOP_SECONDS = 20
_LISTENING = re.compile(r'msg="Listening on".* address=(\S+)')


class Refused(Exception):
    """An error from Prometheus, with its message."""


class Prometheus:
    """Context manager that runs Prometheus and checks its exit code. Writes its log and data to
    `directory`."""

    def __init__(self, config: dict, directory: Path) -> None:
        if not BINARY.exists():
            raise FileNotFoundError(f"no {BINARY}: run scripts/setup_deploy.sh")
        self._log = directory / "prometheus.log"
        self.address = ""
        config_path = directory / "prometheus.json"
        config_path.write_text(json.dumps(config))
        self._command = [
            str(BINARY),
            f"--config.file={config_path}",
            f"--storage.tsdb.path={directory / 'data'}",
            "--web.listen-address=127.0.0.1:0",
        ]

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_until(self._is_ready, START_SECONDS)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
        assert code == 0, self._log.read_text()

    def ask(self, path: str, **parameters: str) -> object:
        """Calls the HTTP API at `path`. Raises Refused for an invalid query."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error)["error"]) from error

    def values(self, query: str, at: float | None = None) -> list[float]:
        """Evaluates the query now or at time `at`. Returns one value per series."""
        moment = {} if at is None else {"time": str(at)}
        answer = self.ask("query", query=query, **moment)
        if answer["resultType"] == "scalar":
            return [float(answer["result"][1])]
        return [float(series["value"][1]) for series in answer["result"]]

    def _is_ready(self) -> bool:
        log = self._log.read_text()
        assert self._process.poll() is None, log
        if not self.address and (listening := _LISTENING.search(log)):
            self.address = listening[1]
        if not self.address:
            return False
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except urllib.error.HTTPError:
            return False
