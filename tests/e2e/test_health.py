"""Health over gRPC, on the main port and on a separate port, and over HTTP."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import grpc
import pytest
from e2e.support.polling import wait_until
from e2e.support.probes import NOT_SERVING, SERVING, check, get, health
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import Server
from grpc_health.v1 import health_pb2, health_pb2_grpc

PORTS = ["grpc_port", "health_port"]
READY_NAMES = ["", "readiness", "mlp"]
# The drain delay is longer than the tests.
DELAY = ("--health_port=0", "--drain_delay=3600")


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("cpu*1", names=("mlp",), flags=("--health_port=0",))


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("name", ["liveness", *READY_NAMES])
def test_running_server_reports_serving(server: Server, port: str, name: str) -> None:
    assert check(server, port, name) == SERVING


@pytest.mark.parametrize("port", PORTS)
def test_unknown_service_is_not_found(server: Server, port: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(server, port, "nosuch")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_port_has_no_other_service(server: Server) -> None:
    address = f"127.0.0.1:{server.ready['health_port']}"
    stub = Stub(channel(address), "inference.GRPCInferenceService")
    with pytest.raises(grpc.RpcError) as caught:
        stub.ServerLive(message("inference.ServerLiveRequest")())
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_http_probes(server: Server) -> None:
    for path in ("/healthz", "/readyz"):
        assert get(server, path) == (200, "ok\n")
        assert get(server, path, "HEAD") == (200, "")
        assert get(server, path, "POST")[0] == 405
    for path in ("/index.html", "/healthz/", "/etc/passwd"):
        assert get(server, path)[0] == 404


def test_slow_http_clients_do_not_block_probes(server: Server) -> None:
    address = ("127.0.0.1", server.ready["metrics_port"])
    slow = [socket.create_connection(address) for _ in range(12)]
    try:
        assert get(server, "/healthz") == (200, "ok\n")
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.parametrize(
    ("port", "connections", "most"), [("health_port", 40, 256), ("grpc_port", 420, 4096)]
)
def test_many_watches_do_not_block_probes(
    server: Server, port: str, connections: int, most: int
) -> None:
    """Each connection opens ten watches. The port accepts `most`."""
    address = f"127.0.0.1:{server.ready[port]}"
    # Separate connections: channels to one address would otherwise share one.
    own = (("grpc.use_local_subchannel_pool", 1),)
    request = health_pb2.HealthCheckRequest(service="readiness")
    channels = [grpc.insecure_channel(address, own) for _ in range(connections)]

    def watch(on: grpc.Channel) -> grpc.Call | None:
        """Returns None if the watch was rejected."""
        call = health_pb2_grpc.HealthStub(on).Watch(request, timeout=CALL_SECONDS)
        try:
            assert next(call).status == SERVING
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED
            return None
        return call

    watches = [watch(on) for on in channels for _ in range(10)]
    assert sum(call is not None for call in watches) == most
    assert check(server, port, "readiness") == SERVING
    for on in channels:
        on.close()
    with grpc.insecure_channel(address, own) as on:
        wait_until(lambda: watch(on) is not None)


def test_watches_of_one_connection_do_not_block_others(server: Server) -> None:
    """Five connections open 1,000 watches each and get 16 each."""
    address = f"127.0.0.1:{server.ready['grpc_port']}"
    own = (("grpc.use_local_subchannel_pool", 1),)
    request = health_pb2.HealthCheckRequest(service="readiness")

    def watch(on: grpc.Channel) -> grpc.Call:
        return health_pb2_grpc.HealthStub(on).Watch(request, timeout=CALL_SECONDS)

    def taken(call: grpc.Call) -> bool:
        try:
            return next(call).status == SERVING
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED
            return False

    floods = [grpc.insecure_channel(address, own) for _ in range(5)]
    watches = [watch(on) for on in floods for _ in range(1000)]
    assert sum(map(taken, watches)) == 5 * 16
    with grpc.insecure_channel(address, own) as on:
        assert taken(watch(on))
    for on in floods:
        on.close()


def test_silent_connection_is_closed(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.ready["health_port"])) as silent:
        silent.settimeout(15)
        while silent.recv(4096):  # gRPC's settings frame.
            pass


def test_draining_server_is_live_but_not_ready(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", names=("mlp",), flags=DELAY)
    watches = {
        (port, name): health(server, port).Watch(
            health_pb2.HealthCheckRequest(service=name), timeout=CALL_SECONDS
        )
        for port in PORTS
        for name in READY_NAMES
    }
    for watch in watches.values():
        assert next(watch).status == SERVING
    server.terminate()
    for of, watch in watches.items():
        assert next(watch).status == NOT_SERVING, of
    for port in PORTS:
        for name in READY_NAMES:
            assert check(server, port, name) == NOT_SERVING
        assert check(server, port, "liveness") == SERVING
    assert get(server, "/readyz") == (503, "the server is shutting down\n")
    assert get(server, "/healthz") == (200, "ok\n")
    stub = Stub(channel(server.address), "inference.GRPCInferenceService")
    assert stub.ServerLive(message("inference.ServerLiveRequest")()).live
    assert not stub.ServerReady(message("inference.ServerReadyRequest")()).ready
    started = time.monotonic()
    server.terminate()  # Skips the rest of the drain delay.
    # Open watches do not delay the exit.
    assert server.wait() == 0, server.log
    assert time.monotonic() - started < 10
