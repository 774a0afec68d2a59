"""Code blocks of the documentation, and a runner that executes the blocks of a page in order."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.support.polling import wait_until
from e2e.support.server import BINARY, COMMAND, ROOT, START_SECONDS, STOP_SECONDS

GRPC_PORT, METRICS_PORT = "127.0.0.1:8001", "127.0.0.1:8002"
# Programs that install software or need a cluster or a registry. Tests do not run their blocks, but
# files that they name must exist.
INSTALLERS = ("scripts/", "export PATH", "pip", "docker", "kubectl", "helm")
COMMAND_SECONDS = 120


@dataclass(frozen=True)
class Block:
    """A fenced code block. line: the number of its first line of code."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Returns all code blocks of a Markdown page, including those indented in a list."""
    found, start, language, lines = [], 0, "", []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = re.fullmatch(r" *```(\w*)", line)
        if fence and not start:
            start, language, lines = number + 1, fence[1], []
        elif fence:
            indent = min((len(x) - len(x.lstrip()) for x in lines if x.strip()), default=0)
            text = "".join(f"{x[indent:]}\n" for x in lines)
            found.append(Block(page, start, language, text))
            start = 0
        elif start:
            lines.append(line)
    assert not start, f"{page}:{start}: a code block is not closed"
    return found


def installs(block: Block) -> bool:
    """Returns True if tests do not run the block."""
    return block.language == "sh" and block.text.startswith(INSTALLERS)


def missing_files(block: Block) -> list[str]:
    """Returns the files that an installer's block names and that the repository does not have."""
    words = shlex.split(block.text, comments=True)
    named = [re.sub(r"\[.*\]$", "", word) for word in words]
    paths = [word for word in named if re.match(r"(scripts|deploy|\./client)/", word)]
    return [path for path in paths if not (ROOT / path).exists()]


class PageRunner:
    """Runs a page's Python and shell blocks in `directory`, as a reader would.

    Python blocks share one namespace. A block that begins with `braid-server` starts a server in
    the background and stops the previous one. The port does not change. Each CPU worker has one
    thread.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: dict = {"__name__": "__main__"}
        self._server: subprocess.Popen | None = None
        self._ready = directory / "ready.json"
        self._log = directory / "server.log"
        self._ports: dict[str, int] = {}

    def __enter__(self) -> PageRunner:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                self._stop()
        finally:
            if self._server is not None and self._server.poll() is None:
                self._server.kill()
                self._server.wait()

    def run(self, block: Block) -> None:
        """Runs one block. Raises what a Python block raises. Raises AssertionError if a command
        fails or if the output differs from the comments after the print statements."""
        if block.language == "python":
            # The blank lines make line numbers in errors match the page.
            source = "\n" * (block.line - 1) + self._local(block.text)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(source, str(block.page), "exec"), self._names)
            lines = [line.rstrip() for line in printed.getvalue().splitlines()]
            for expected in re.findall(r"^print\(.*\)    # (.*)$", block.text, re.MULTILINE):
                assert expected in lines, block.id
        elif block.language == "sh" and block.text.startswith("braid-server"):
            self._start(shlex.split(block.text.replace("\\\n", ""), comments=True)[1:])
        elif block.language == "sh":
            self._command(block)

    def _local(self, text: str) -> str:
        """Replaces the default ports with the ports of the running server."""
        for address, name in ((GRPC_PORT, "grpc_port"), (METRICS_PORT, "metrics_port")):
            if name in self._ports:
                text = text.replace(address, f"127.0.0.1:{self._ports[name]}")
        return text

    def _command(self, block: Block) -> None:
        path = f"{COMMAND.parent}:{BINARY.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._local(block.text)],
            cwd=self._directory,
            env={
                **os.environ,
                "PATH": path,
                "PYTHONPATH": str(ROOT / "client/python"),
                "BRAID_SERVER": self._local(GRPC_PORT),
            },
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == 0, f"{block.id}\n{done.stdout}{done.stderr}{self.log}"

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _start(self, flags: list[str]) -> None:
        self._stop()
        self._ready.unlink(missing_ok=True)
        given = {flag.split("=")[0] for flag in flags}
        defaults = {
            "--grpc_port": self._ports.get("grpc_port", 0),
            "--metrics_port": self._ports.get("metrics_port", 0),
            "--cpu_threads": 1,
            "--devices": "cpu*2",
            "--ready_file": "ready.json",
        }
        # The page's ports may be in use on this machine.
        flags = [flag for flag in flags if not re.match(r"--(grpc|metrics)_port=", flag)]
        given -= {"--grpc_port", "--metrics_port"}
        more = [f"{name}={value}" for name, value in defaults.items() if name not in given]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [BINARY, *flags, *more], cwd=self._directory, stdout=log, stderr=log
            )
        wait_until(self._is_ready, START_SECONDS)
        self._ports = json.loads(self._ready.read_text())

    def _is_ready(self) -> bool:
        code = self._server.poll()
        assert code is None, f"the server ended with {code}\n{self.log}"
        return self._ready.exists()

    def _stop(self) -> None:
        """Shuts the server down. A block may already have killed it."""
        if self._server is None:
            return
        if self._server.poll() is None:
            self._server.terminate()
        code = self._server.wait(timeout=STOP_SECONDS)
        assert code in (0, -signal.SIGKILL), f"exit code {code}\n{self.log}"
