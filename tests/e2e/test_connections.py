"""Connections that take what others need: descriptors, time, calls that are never sent. And a port
that nobody listens at any more."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import braid
import grpc
import pytest
from e2e import access, http2, metrics, protocol
from e2e.probes import NOT_SERVING, SERVING, check, get
from e2e.server import Server
from e2e.waiting import wait_until
from grpc_health.v1 import health_pb2, health_pb2_grpc

MODEL = "mine"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LIST_SERVICES = b"\x3a\x00"
# Calls that may be on their way for long, and of one connection at once.
MOST_ARRIVING = 4096
STREAMS = 1000
PIDFD_GETFD = 438


@pytest.fixture(scope="module")
def models_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("connections") / "models"
    access.export_model(directory / MODEL)
    return directory


@pytest.fixture
def server(models_directory: Path, tmp_path: Path) -> Iterator[Server]:
    with Server(models_directory, "cpu*1", tmp_path, ("--health_port=0",)) as running:
        yield running


@pytest.fixture
def connections() -> Iterator[contextlib.ExitStack]:
    """Closes what is entered. This process may have more open than most systems begin with."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    with contextlib.ExitStack() as stack:
        yield stack
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def answers(address: str) -> bool:
    with braid.connect(address) as client:
        return client.is_ready()


def metric(server: Server, name: str) -> float:
    return metrics.scrape(server.metrics_url).value(name)


def ended(connection: socket.socket) -> bool:
    """Whether the server has ended it. Reads what has come."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def read_to_the_end(connection: socket.socket) -> None:
    """Returns when the server has ended it."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass


def test_the_limit_of_descriptors_is_raised(models_directory: Path, tmp_path: Path) -> None:
    with Server(models_directory, "cpu*1", tmp_path, open_files="256:1536") as server:
        assert metric(server, "process_max_fds") == 1536


def test_more_connections_than_descriptors(
    models_directory: Path, tmp_path: Path, connections: contextlib.ExitStack
) -> None:
    """They say nothing. What is left is for probes and scrapes, and clients come back after."""
    with Server(
        models_directory, "cpu*1", tmp_path, ("--health_port=0",), open_files="512:512"
    ) as server:
        for _ in range(700):
            connections.enter_context(http2.connect(server.address, b""))
        wait_until(lambda: metric(server, "braid_connections_refused_total") >= 100)
        assert get(server, "/healthz") == (200, "ok\n")
        assert check(server, "health_port", "liveness") == SERVING
        assert max(server.open_files()) < 512 - 32
        connections.close()
        wait_until(lambda: len(server.open_files()) < 256)
        assert answers(server.address)
        assert check(server, "grpc_port", "liveness") == SERVING
        assert "connections are refused" in server.log


def test_without_any_descriptor_the_port_lives_on(
    server: Server, connections: contextlib.ExitStack
) -> None:
    """The kernel itself refuses, as when other processes have all that there are."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # The numbers that were free between others are taken.
    files = len(server.open_files())
    for _ in range(20):
        connections.enter_context(http2.connect(server.address))
    wait_until(lambda: len(server.open_files()) >= files + 20)
    used = server.open_files()
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        for _ in range(3):
            with http2.connect(server.address) as connection:
                read_to_the_end(connection)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert answers(server.address)
    wait_until(lambda: metric(server, "braid_connections_refused_total") >= 3)
    assert get(server, "/healthz") == (200, "ok\n")


def test_an_idle_connection_is_closed_and_its_client_goes_on(
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
            read_to_the_end(silent)


def test_a_connection_with_a_call_is_not_idle(models_directory: Path, tmp_path: Path) -> None:
    flags = ("--max_connection_idle=0.5",)
    with Server(models_directory, "cpu*1", tmp_path, flags) as server, protocol.channel(
        server.address
    ) as on:
        request = health_pb2.HealthCheckRequest(service="liveness")
        watch = health_pb2_grpc.HealthStub(on).Watch(request)
        assert next(watch).status == SERVING
        for _ in range(3):
            with http2.connect(server.address) as silent:
                read_to_the_end(silent)
        assert watch.is_active()
        watch.cancel()


def test_calls_that_are_never_sent_are_bounded(
    server: Server, connections: contextlib.ExitStack
) -> None:
    """Each has a head and the length of its message, and then nothing. Calls that are there, and
    wait, are left alone, however many a connection has."""
    flooding = [connections.enter_context(http2.connect(server.address)) for _ in range(5)]
    waiting = connections.enter_context(http2.connect(server.address))
    streams = b"".join(
        http2.open_call(STREAM_INFER, stream=2 * number + 1) for number in range(STREAMS + 20)
    )
    waiting.sendall(streams)
    on = connections.enter_context(protocol.channel(server.address))
    request = health_pb2.HealthCheckRequest(service="liveness")
    watch = health_pb2_grpc.HealthStub(on).Watch(request)
    assert next(watch).status == SERVING

    # These have arrived; the server needs some time to say so.
    wait_until(lambda: metric(server, "braid_calls_arriving") < 100)
    calls = b"".join(
        http2.begin_call(INFER, 100, stream=2 * number + 1) for number in range(STREAMS)
    )
    for connection in flooding:
        connection.sendall(calls)
    wait_until(lambda: metric(server, "braid_calls_arriving") > MOST_ARRIVING)
    assert answers(server.address)

    gone = set()

    def one_is_ended() -> bool:
        gone.update(number for number, each in enumerate(flooding) if ended(each))
        return bool(gone)

    wait_until(one_is_ended)
    wait_until(lambda: metric(server, "braid_calls_arriving") <= MOST_ARRIVING)
    one_is_ended()
    assert len(gone) == 1
    assert not ended(waiting)
    assert watch.is_active()
    assert "have begun 1000 calls and do not send them" in server.log
    assert answers(server.address)
    watch.cancel()


def test_reflection_streams_of_one_connection_keep_no_other_away(server: Server) -> None:
    """Each has a thread of the server's."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield LIST_SERVICES
        over.wait()

    calls = []  # one that nobody holds is cancelled

    def reflect(on: grpc.Channel) -> bool:
        """Opens a stream that stays; whether it is answered."""
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


def listening_socket(server: Server, port: int) -> socket.socket:
    """A descriptor of our own of the socket at which the server listens."""
    tables = [Path(f"/proc/{server.process.pid}/net/{name}") for name in ("tcp", "tcp6")]
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
    row = next(
        fields
        for fields in map(str.split, lines)
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    )
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    theirs = next(
        int(number)
        for number in os.listdir(descriptors)
        if os.readlink(descriptors / number) == f"socket:[{row[9]}]"
    )
    process = os.pidfd_open(server.process.pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, theirs, 0)
    finally:
        os.close(process)
    if ours < 0:
        pytest.skip(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
    return socket.socket(fileno=ours)


def test_a_port_that_nobody_listens_at_is_not_live(server: Server) -> None:
    with listening_socket(server, server.ready["grpc_port"]) as listener:
        listener.shutdown(socket.SHUT_RD)
    wait_until(lambda: get(server, "/healthz")[0] == 503, seconds=30)
    why = f"port {server.ready['grpc_port']} is not listened at any more"
    assert why in get(server, "/healthz")[1]
    assert check(server, "health_port", "liveness") == NOT_SERVING
    assert re.search(f"error .*rpc: {why}", server.log)


def test_a_server_that_ends_stays_live(models_directory: Path, tmp_path: Path) -> None:
    """It closes its port by itself."""
    with Server(models_directory, "cpu*1", tmp_path) as server:
        server.stop()
        assert "is not listened at" not in server.log
