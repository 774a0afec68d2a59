"""Flags, startup and startup errors: one clear line, exit code 2."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.support.server import BINARY, Server, run_to_exit

FAKE_CUDA_DRIVER = BINARY.parents[1] / "lib/libfake_cuda_driver.so"

FLAGS = [
    "--model_repository",
    "--data_dir",
    "--devices",
    "--listen",
    "--grpc_port",
    "--metrics_port",
    "--health_port",
    "--ready_file",
    "--drain_delay",
    "--drain_timeout",
]


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("cpu*2", names=("convnet",), flags=("--health_port=0",))


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which another process listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_help_lists_every_flag() -> None:
    done = run_to_exit("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for flag in FLAGS:
        assert flag in done.stdout


def assert_start_fails(
    flags: list[str], *words: str, environment: dict[str, str] | None = None
) -> None:
    """Checks for exit code 2 and one line on stderr that contains all of `words`."""
    done = run_to_exit(*flags, environment=environment)
    assert done.returncode == 2, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done
    for word in words:
        assert word in lines[0]


def valid_flags(repository: Path, directory: Path) -> dict[str, str]:
    return {
        "--model_repository": str(repository),
        "--data_dir": str(directory / "data"),
        "--devices": "cpu*1",
        "--grpc_port": "0",
        "--metrics_port": "0",
    }


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--devices", "tpu"),
        ("--devices", "cpu*0"),
        ("--devices", "cpu*"),
        ("--devices", "cuda:63"),
        ("--devices", ""),
        ("--grpc_port", "65536"),
        ("--grpc_port", "-1"),
        ("--metrics_port", "http"),
        ("--health_port", "65536"),
        ("--listen", "999.1.1.1"),
        ("--model_repository", "/nonexistent/models"),
        ("--data_dir", "/proc/data"),
        ("--output_root", "/proc/outputs"),
        ("--ready_file", "/nonexistent/ready"),
        ("--profile", "/nonexistent/trace.json"),
        ("--profile", "/tmp"),
    ],
)
def test_invalid_value_is_rejected(repository: Path, tmp_path: Path, flag: str, value: str) -> None:
    flags = {**valid_flags(repository, tmp_path), flag: value}
    assert_start_fails([f"{name}={text}" for name, text in flags.items()], flag, value)


# Return codes of cuInit(), driver versions, and the resulting errors of the CUDA runtime.
UNUSABLE_DRIVERS = [
    ("802", "13020", "system not yet initialized (cudaErrorSystemNotReady"),
    ("0", "11040", "CUDA driver version is insufficient for CUDA runtime version"),
]


def unusable_driver(directory: Path, init: str, version: str) -> dict[str, str]:
    """Environment of a process with a CUDA driver that cannot use any GPU."""
    (directory / "libcuda.so.1").symlink_to(FAKE_CUDA_DRIVER.resolve(strict=True))
    return {
        "LD_LIBRARY_PATH": str(directory),
        "FAKE_CUDA_INIT": init,
        "FAKE_CUDA_VERSION": version,
    }


@pytest.mark.parametrize(("init", "version", "reason"), UNUSABLE_DRIVERS)
def test_unusable_gpu_is_rejected_with_the_drivers_reason(
    repository: Path, tmp_path: Path, init: str, version: str, reason: str
) -> None:
    flags = {**valid_flags(repository, tmp_path), "--devices": "cuda"}
    environment = unusable_driver(tmp_path, init, version)
    assert_start_fails(
        [f"{name}={text}" for name, text in flags.items()],
        "--devices",
        reason,
        environment=environment,
    )


@pytest.mark.parametrize(("init", "version", "reason"), UNUSABLE_DRIVERS)
def test_auto_devices_log_unusable_gpus_and_use_the_cpu(
    start_server: Callable[..., Server], tmp_path: Path, init: str, version: str, reason: str
) -> None:
    environment = unusable_driver(tmp_path, init, version)
    server = start_server("auto", names=("mlp",), environment=environment)
    assert reason in server.log
    assert "device cpu:1" in server.log


@pytest.mark.parametrize("extra", ["--nosuch=1", "--grpc-port=1", "surplus"])
def test_unknown_flag_is_rejected(repository: Path, tmp_path: Path, extra: str) -> None:
    flags = valid_flags(repository, tmp_path)
    assert_start_fails([*(f"{name}={text}" for name, text in flags.items()), extra], extra.split("=")[0])


def test_model_repository_is_required(tmp_path: Path) -> None:
    assert_start_fails([f"--data_dir={tmp_path}"], "--model_repository")


@pytest.mark.parametrize("flag", ["--grpc_port", "--metrics_port", "--health_port"])
def test_port_in_use_is_rejected(
    repository: Path, tmp_path: Path, taken_port: int, flag: str
) -> None:
    flags = {**valid_flags(repository, tmp_path), flag: str(taken_port)}
    assert_start_fails([f"{name}={text}" for name, text in flags.items()], flag, str(taken_port))


@pytest.mark.parametrize("flag", ["--grpc_port", "--metrics_port", "--health_port"])
def test_port_of_another_server_is_rejected(
    repository: Path, tmp_path: Path, server: Server, flag: str
) -> None:
    """gRPC would share the port, and clients would reach either server at random."""
    port = server.ready[flag.removeprefix("--")]
    flags = {**valid_flags(repository, tmp_path), flag: str(port)}
    assert_start_fails([f"{name}={text}" for name, text in flags.items()], flag, str(port))


def test_ready_file(server: Server) -> None:
    ready = json.loads(server.ready_path.read_text())
    assert set(ready) == {"grpc_port", "metrics_port", "health_port", "pid"}
    assert ready.pop("pid") == server.process.pid
    for port in ready.values():
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass


def test_log_reports_devices_and_models(server: Server) -> None:
    ports = [str(server.ready[name]) for name in ("grpc_port", "metrics_port", "health_port")]
    for word in ("convnet", "cpu:0", "cpu:1", *ports):
        assert word in server.log


def test_idle_server_memory_is_small(server: Server) -> None:
    assert server.resident_bytes() < 450 << 20
