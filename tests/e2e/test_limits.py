"""Limits for clients: requests, calls and age of a connection, pings, compression, sizes."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import braid
import grpc
import numpy as np
import pytest
from e2e.support import auth, http2, models, protocol
from e2e.support.polling import wait_until
from e2e.support.server import Server

MODEL = "mine"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAMS = 8


@pytest.fixture(scope="module")
def models_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("limits") / "models"
    auth.export_model(directory / MODEL)
    return directory


@pytest.fixture(scope="module")
def server(models_directory: Path) -> Iterator[Server]:
    flags = (f"--max_connection_streams={STREAMS}", "--refuse_compression", "--health_port=0")
    directory = models_directory.parent / "run"
    with Server(models_directory, "cpu*1", directory, flags) as running:
        yield running


def read_frames(connection: socket.socket) -> Iterator[tuple[int, int, int, bytes]]:
    """Yields (type, flags, stream, payload) of received frames until the server closes."""
    received = b""
    while True:
        while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
            piece = connection.recv(1 << 16)
            if not piece:
                return
            received += piece
        length = int.from_bytes(received[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", received[3:9])
        yield kind, flags, stream, received[9 : 9 + length]
        received = received[9 + length :]


def answers(address: str) -> bool:
    with braid.connect(address) as client:
        return client.is_ready()


def model_ready(on: grpc.Channel) -> grpc.UnaryUnaryMultiCallable:
    """Returns a method that also sends compressed requests."""
    return on.unary_unary(
        "/inference.GRPCInferenceService/ModelReady",
        request_serializer=lambda message: message.SerializeToString(),
    )


def test_too_many_pings_close_the_connection(server: Server) -> None:
    with http2.connect(server.address) as connection:
        ping = http2.frame(http2.PING, 0, 0, bytes(8))
        try:
            for _ in range(1000):
                connection.sendall(ping)
        except OSError:
            pass  # The connection is closed already.
        goodbyes = []
        reset = False
        try:
            # Reads until the server closes the connection.
            for kind, _, _, payload in read_frames(connection):
                if kind == http2.GOAWAY:
                    goodbyes.append(payload)
        except ConnectionError:
            reset = True  # Closed with unread pings.
    assert reset or b"too_many_pings" in goodbyes[-1]
    assert answers(server.address)


def test_concurrent_calls_of_a_connection_are_limited(server: Server) -> None:
    """The client opens more calls than the server's settings allow."""
    with http2.connect(server.address) as connection:
        frames = read_frames(connection)
        told = next(payload for kind, _, _, payload in frames if kind == http2.SETTINGS)
        settings = dict(struct.iter_unpack(">HI", told))
        assert settings[http2.MAX_CONCURRENT_STREAMS] == STREAMS
        connection.sendall(http2.frame(http2.SETTINGS, http2.ACK, 0))
        for number in range(4 * STREAMS):
            connection.sendall(http2.begin_call(INFER, 100, stream=2 * number + 1))
        heard_of = set()
        try:
            # Reads until the server closes the connection.
            heard_of.update(stream for _, _, stream, _ in frames)
        except ConnectionError:
            pass  # Closed with unread frames, which resets it.
    assert heard_of <= {0, *range(1, 2 * STREAMS, 2)}
    assert answers(server.address)


def test_client_waits_at_the_limit_of_concurrent_calls(server: Server) -> None:
    """gRPC's clients obey the server's settings."""
    x = np.ones((1, 10), np.float32)
    with braid.connect(server.address) as client:
        (tensor,) = client.model_metadata(MODEL).inputs
        done = queue.SimpleQueue()

        def infer() -> None:
            client.infer(MODEL, {tensor.name: x})
            done.put(True)

        threads = [threading.Thread(target=infer) for _ in range(4 * STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done.qsize() == len(threads)


@pytest.mark.parametrize(
    ("flags", "accepted"),
    [
        ((), True),
        (("--refuse_compression",), False),
        (("--listen=0.0.0.0", "--allow_unauthenticated"), False),
        (("--listen=0.0.0.0", "--allow_unauthenticated", "--accept_compression"), True),
    ],
)
def test_compressed_messages_are_accepted_on_loopback_or_on_request(
    models_directory: Path, tmp_path: Path, flags: tuple[str, ...], accepted: bool
) -> None:
    request = auth.request_naming(auth.METHODS["ModelReady"], MODEL, "")
    request.name = MODEL * 1000  # gRPC does not compress short messages.
    with Server(models_directory, "cpu*1", tmp_path, flags) as server, protocol.channel(
        f"127.0.0.1:{server.ready['grpc_port']}"
    ) as on:
        with pytest.raises(grpc.RpcError) as caught:
            model_ready(on)(request, timeout=30, compression=grpc.Compression.Gzip)
    # The server's own code reports that the name is too long.
    expected = grpc.StatusCode.INVALID_ARGUMENT if accepted else grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.code() == expected


def test_rejected_message_is_not_decompressed(models_directory: Path, tmp_path: Path) -> None:
    """A quarter of a megabyte that decompresses to a quarter of a gibibyte."""
    flags = ("--refuse_compression",)
    with Server(models_directory, "cpu*1", tmp_path, flags) as server, protocol.channel(
        server.address
    ) as on:
        call = on.unary_unary(INFER, request_serializer=lambda message: message)
        before, peak = server.resident_bytes(), 0
        answer = call.future(bytes(1 << 28), timeout=60, compression=grpc.Compression.Gzip)
        while not answer.done():
            peak = max(peak, server.resident_bytes())
            time.sleep(0.005)
        assert answer.code() == grpc.StatusCode.UNIMPLEMENTED
        assert peak - before < 64 << 20
        assert answers(server.address)


def test_too_long_message_is_rejected(models_directory: Path, tmp_path: Path) -> None:
    request = auth.request_naming(auth.METHODS["ModelReady"], MODEL, "")
    with Server(
        models_directory, "cpu*1", tmp_path, ("--max_message_bytes=1048576",)
    ) as server, protocol.channel(server.address) as on:
        call = model_ready(on)
        # The server reads and checks one message, and does not read the other.
        request.name = "x" * (1 << 19)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        request.name = "x" * (1 << 20)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in caught.value.details()
        assert answers(server.address)


def test_bytes_in_flight_are_limited(models_directory: Path, tmp_path: Path) -> None:
    """Three calls of a quarter of a GiB each, on a server with a limit of 128 MiB."""
    sent = b"x" * (1 << 28)
    failures = []

    def flood() -> None:
        with protocol.channel(server.address) as on:
            call = on.unary_unary(INFER, request_serializer=lambda message: message)
            with pytest.raises(grpc.RpcError) as caught:
                call(sent, timeout=60)
            failures.append(caught.value.code())

    flags = ("--max_message_bytes=67108864", "--max_request_bytes=1048576")
    with Server(models_directory, "cpu*1", tmp_path, flags) as server:
        before, peak = server.resident_bytes(), 0
        threads = [threading.Thread(target=flood) for _ in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            peak = max(peak, server.resident_bytes())
            time.sleep(0.01)
        assert failures == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 3
        assert peak - before < 256 << 20
        assert answers(server.address)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_rejected_compression_is_named(server: Server, algorithm: grpc.Compression) -> None:
    request = auth.request_naming(auth.METHODS["ModelReady"], MODEL, "")
    with protocol.channel(server.address) as on:
        call = model_ready(on)
        call(request, timeout=30)
        request.name = MODEL * 1000
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30, compression=algorithm)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "ompression algorithm" in caught.value.details()


def test_clients_reconnect_at_the_maximum_age(models_directory: Path, tmp_path: Path) -> None:
    flags = ("--max_connection_age=0.5", "--max_connection_age_grace=0.5")
    with Server(models_directory, "cpu*1", tmp_path / "run", flags) as server:
        with http2.connect(server.address) as connection:
            kinds = [kind for kind, *_ in read_frames(connection)]
            assert http2.GOAWAY in kinds
        x = np.ones((1, 10), np.float32)
        with braid.connect(server.address) as client:
            (tensor,) = client.model_metadata(MODEL).inputs
            until = time.monotonic() + 3
            while time.monotonic() < until:
                client.infer(MODEL, {tensor.name: x})


@pytest.mark.parametrize("limit", ["--max_client_requests", "--max_client_request_bytes"])
@pytest.mark.parametrize("by_token", [True, False])
def test_each_clients_requests_are_limited(tmp_path: Path, by_token: bool, limit: str) -> None:
    models.export(tmp_path / "models" / "slow", models.make("slow"), config=models.configs.SLOW)
    (tmp_path / "tokens").write_text(
        auth.token_line("infer", "one", "ann") + auth.token_line("infer", "two", "bob")
    )
    flags = (
        f"{limit}=1",
        *((f"--auth_tokens={tmp_path / 'tokens'}",) if by_token else ()),
    )
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run", flags) as server:
        with braid.connect(server.address, token="one" if by_token else None) as ann:
            (tensor,) = ann.model_metadata("slow").inputs
            inputs = {tensor.name: np.ones((64, *tensor.shape[1:]), np.float32)}

            # One call at a time from either client: while it runs, the other's is rejected.
            refused = []

            def infer() -> None:
                try:
                    ann.infer("slow", inputs)
                except braid.ResourceExhausted as error:
                    refused.append(str(error))

            def both() -> bool:
                threads = [threading.Thread(target=infer) for _ in range(2)]
                for thread in threads:
                    thread.start()
                if by_token:
                    with braid.connect(server.address, token="two") as bob:
                        bob.infer("slow", inputs)
                for thread in threads:
                    thread.join()
                return bool(refused)

            wait_until(both)
            assert f"({limit})" in refused[0]
            ann.infer("slow", inputs)


@pytest.mark.parametrize(
    "shape",
    [
        [1] * 10_000,
        [2**62, 2**62],
        [2**63 - 1],
        [-(2**63)],
        [0] * 5000,
        [2**32, 2**32, 0],
    ],
)
def test_absurd_shapes_are_rejected(server: Server, shape: list[int]) -> None:
    request = auth.request_naming(auth.METHODS["ModelInfer"], MODEL, "")
    with braid.connect(server.address) as client:
        (tensor,) = client.model_metadata(MODEL).inputs
    request.inputs.add(name=tensor.name, datatype="FP32", shape=shape)
    request.raw_input_contents.append(bytes(40))
    with protocol.channel(server.address) as on:
        code, message = auth.outcome(on, auth.METHODS["ModelInfer"], request, [])
    assert code == "INVALID_ARGUMENT"
    assert len(message) < 100_000


def test_absurd_strings_are_rejected_with_their_field(server: Server) -> None:
    infer = auth.METHODS["ModelInfer"]
    with protocol.channel(server.address) as on:
        for field in ("id", "model_name", "model_version"):
            request = auth.request_naming(infer, MODEL, "")
            setattr(request, field, "x" * (3 << 20))
            code, message = auth.outcome(on, infer, request, [])
            assert code == "INVALID_ARGUMENT"
            assert message.startswith(f"{field}: 3145728 bytes (expected at most 1024")
    assert answers(server.address)


def test_long_names_are_truncated_in_errors(server: Server) -> None:
    long = "é" * (1 << 20)
    with protocol.channel(server.address) as on:
        for method in ("ModelInfer", "ModelReady", "ModelConfig", "GetTrainer", "Step", "Rollback"):
            request = auth.request_naming(auth.METHODS[method], long, long)
            code, message = auth.outcome(on, auth.METHODS[method], request, [])
            if method != "ModelReady":
                assert code in ("NOT_FOUND", "INVALID_ARGUMENT"), (method, code, message[:200])
            assert len(message) < 1000, method
    assert answers(server.address)
    assert len(server.log) < 100_000
