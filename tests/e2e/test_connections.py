"""Limits of connections: file descriptors, idle time and reflection streams."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import braid
import grpc
import pytest
from e2e.support import auth, http2, metrics, protocol
from e2e.support.polling import wait_until
from e2e.support.probes import SERVING
from e2e.support.server import Server
from grpc_health.v1 import health_pb2, health_pb2_grpc

MODEL = "mine"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIST_SERVICES = b"\x3a\x00"


@pytest.fixture(scope="module")
def models_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("connections") / "models"
    auth.export_model(directory / MODEL)
    return directory


@pytest.fixture
def server(models_directory: Path, tmp_path: Path) -> Iterator[Server]:
    with Server(models_directory, "cpu*1", tmp_path, ("--health_port=0",)) as running:
        yield running


def answers(address: str) -> bool:
    with braid.connect(address) as client:
        return client.is_ready()


def metric(server: Server, name: str) -> float:
    return metrics.scrape(server.metrics_url).value(name)


def read_until_closed(connection: socket.socket) -> None:
    """Returns when the server has closed the connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass


def test_file_descriptor_limit_is_raised(models_directory: Path, tmp_path: Path) -> None:
    with Server(models_directory, "cpu*1", tmp_path, open_files="256:1536") as server:
        assert metric(server, "process_max_fds") == 1536


def test_idle_connection_is_closed_and_its_client_reconnects(
    models_directory: Path, tmp_path: Path
) -> None:
    flags = ("--max_connection_idle=0.5",)
    with Server(models_directory, "cpu*1", tmp_path, flags) as server:
        before = server.open_files()
        with braid.connect(server.address) as client:
            assert client.is_ready()
            wait_until(lambda: len(server.open_files()) <= len(before))
            assert client.is_ready()
        with http2.connect(server.address) as silent:
            read_until_closed(silent)


def test_connection_with_a_call_is_not_idle(models_directory: Path, tmp_path: Path) -> None:
    flags = ("--max_connection_idle=0.5",)
    with Server(models_directory, "cpu*1", tmp_path, flags) as server, protocol.channel(
        server.address
    ) as on:
        request = health_pb2.HealthCheckRequest(service="liveness")
        watch = health_pb2_grpc.HealthStub(on).Watch(request)
        assert next(watch).status == SERVING
        for _ in range(3):
            with http2.connect(server.address) as silent:
                read_until_closed(silent)
        assert watch.is_active()
        watch.cancel()


def test_reflection_streams_of_one_connection_do_not_block_others(server: Server) -> None:
    """Each stream uses a server thread."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield LIST_SERVICES
        over.wait()

    calls = []  # Keeps references: a call without one is cancelled.

    def reflect(on: grpc.Channel) -> bool:
        """Opens a stream that stays open. Returns True if it got a reply."""
        calls.append(on.stream_stream(REFLECTION)(requests(), timeout=60))
        try:
            return len(next(calls[-1])) > 0
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED
            return False

    own = (("grpc.use_local_subchannel_pool", 1),)
    try:
        with grpc.insecure_channel(server.address, own) as on:
            assert [reflect(on) for _ in range(20)] == [True] * 16 + [False] * 4
            with grpc.insecure_channel(server.address, own) as other:
                assert reflect(other)
    finally:
        over.set()
