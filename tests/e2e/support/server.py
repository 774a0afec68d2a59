"""A braid-server process under test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("BRAID_SERVER_BINARY", ROOT / "build/release/bin/braid-server"))
# The command that is installed next to the interpreter of the tests.
COMMAND = Path(sys.executable).with_name("braid")
START_SECONDS = 120
STOP_SECONDS = 60


class Server:
    """One server process. Writes its log to a file and its data to a separate directory.

    repository: the model repository that it serves.
    devices: value of the flag --devices, "cpu*2".
    directory: an empty or new directory for the log, the data and the ready file.
    flags: more flags, appended last.
    data: True if the server has a data directory for persistent state.
    environment: variables in addition to those of this process.
    open_files: limit of open files, "SOFT:HARD"; default: that of this process.

    Context manager: starts the server and checks its exit code, unless the body raised.
    """

    def __init__(
        self,
        repository: Path,
        devices: str,
        directory: Path,
        flags: tuple = (),
        data: bool = True,
        environment: dict[str, str] | None = None,
        open_files: str | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.repository = repository
        self.log_path = directory / "log"
        self.ready_path = directory / "ready.json"
        self._command = [
            # Replaces this process, so the pid is the server's.
            *(["prlimit", f"--nofile={open_files}"] if open_files else []),
            str(BINARY),
            f"--model_repository={repository}",
            *([f"--data_dir={directory / 'data'}"] if data else []),
            f"--devices={devices}",
            "--grpc_port=0",
            "--metrics_port=0",
            f"--ready_file={self.ready_path}",
            *flags,
        ]
        self._environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen | None = None
        self.ready: dict = {}

    def start(self) -> Server:
        """Returns when the server is ready. Raises RuntimeError with the log if it exits."""
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.ready_path.exists():
            if self._ended_within(0.02):
                raise RuntimeError(f"exit code {self.process.returncode}\n{self.log}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"not ready after {START_SECONDS} s\n{self.log}")
        self.ready = json.loads(self.ready_path.read_text())
        return self

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if failure is None:
                self.stop()
        finally:
            self.kill()

    @property
    def address(self) -> str:
        """Address of the gRPC services, "127.0.0.1:41233"."""
        return f"127.0.0.1:{self.ready['grpc_port']}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ready['metrics_port']}/metrics"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def resident_bytes(self) -> int:
        """Returns the process's resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def open_files(self) -> set[int]:
        """Returns the targets of its file descriptors."""
        return {int(name) for name in os.listdir(f"/proc/{self.process.pid}/fd")}

    def terminate(self) -> None:
        """Asks the server to drain and exit. Returns at once."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Waits for the process to exit. Returns the exit code."""
        return self.process.wait(timeout=STOP_SECONDS)

    def stop(self) -> None:
        """Asks the server to exit, waits for it and checks that the exit code is 0."""
        if self.process.poll() is None:
            self.terminate()
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.log}"

    def kill(self) -> None:
        """Kills the process if it is running. For finalizers."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=STOP_SECONDS)

    def _ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of all threads of a process since it started."""
    return time.clock_gettime(~pid << 3 | 2)  # Encoding of clock_getcpuclockid().


def run_to_exit(
    *flags: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Runs the server with only `flags`, which must make it exit by itself.

    environment: variables in addition to those of this process.
    """
    return subprocess.run(
        [str(BINARY), *flags],
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
        env={**os.environ, **(environment or {})},
    )
