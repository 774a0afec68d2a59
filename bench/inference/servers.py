"""Servers that bench/inference compares: Braid, PyTriton, and minimal ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from e2e.support.server import BINARY, ROOT, Server, cpu_seconds

START_SECONDS = 120
STOP_SECONDS = 30
PYTRITON_STARTS = 5
ECHO = BINARY.with_name("braid-bench-echo")
MINIMAL = BINARY.with_name("braid-bench-minimal")
PYTRITON_PYTHON = ROOT / "build/pytriton/bin/python"


class BraidServer:
    """braid-server with `workers` CPU workers of one intra-op thread. folder: new, for its
    files."""

    def __init__(self, models: Path, folder: Path, workers: int = 2, flags: tuple = ()) -> None:
        self._server = Server(
            models, f"cpu*{workers}", folder, ("--cpu_threads=1", *flags), data=False
        )
        try:
            self._server.start()
        except BaseException:
            self._server.kill()
            raise
        self.address = self._server.address

    def cpu_seconds(self) -> float:
        return self._server.cpu_seconds()

    def resident_bytes(self) -> int:
        return self._server.resident_bytes()

    def close(self) -> None:
        try:
            self._server.stop()
        finally:
            self._server.kill()


class ReadyFileServer:
    """Server that creates a file when it is ready and stops on SIGTERM. Its child processes are in
    its process group and are stopped with it."""

    def __init__(self, command: list, ready: Path, environment: dict | None = None) -> None:
        self._log_path = ready.with_suffix(".log")
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                log = self._log_path.read_text(errors="replace")
                raise RuntimeError(f"{command[0]} did not become ready\n{log}")
            time.sleep(0.05)

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(STOP_SECONDS)


class EchoServer(ReadyFileServer):
    """Bare gRPC server that echoes the request's bytes. folder: new, for its files."""

    def __init__(self, folder: Path) -> None:
        port = folder / "port"
        super().__init__([ECHO, port], port)
        self.address = _address(port)


class MinimalServer(ReadyFileServer):
    """Server that runs a model's forward pass on gRPC's threads. Without a model, it replies with
    zeros. folder: new, for its files."""

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        port = folder / "port"
        super().__init__([MINIMAL, port, *([model] if model else [])], port)
        self.address = _address(port)

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)


class PyTritonServer(ReadyFileServer):
    """PyTriton with two workers of one intra-op thread. folder: new, for its files."""

    def __init__(self, model: Path, max_batch: int, folder: Path) -> None:
        ready = folder / "pytriton"
        ports = _free_ports(2)
        script = ROOT / "bench/inference/pytriton_server.py"
        super().__init__(
            [PYTRITON_PYTHON, script, model, max_batch, *ports, ready],
            ready,
            {"PYTRITON_HOME": str(folder / "home"), "PYTHONPATH": ""},
        )
        self.address = f"127.0.0.1:{ports[0]}"


def start_pytriton(model: Path, max_batch: int, new_folder: Callable[[], Path]) -> PyTritonServer:
    """Starts PyTriton. Retries after a race in PyTriton 0.7.0: its second worker connects to a
    socket of the first one, which may not listen yet."""
    for _ in range(PYTRITON_STARTS - 1):
        try:
            return PyTritonServer(model, max_batch, new_folder())
        except RuntimeError as error:
            if "in get_config_from_handshake_server" not in str(error):
                raise
            print("PyTriton: retrying the start after its worker handshake failed", file=sys.stderr)
    return PyTritonServer(model, max_batch, new_folder())


def _address(port_file: Path) -> str:
    return f"127.0.0.1:{port_file.read_text().strip()}"


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
