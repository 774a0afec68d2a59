"""Messages of nearly 2 GiB, the maximum of gRPC and protobuf, and larger messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from e2e.support import models
from e2e.support.protocol import channel, message
from e2e.support.server import Server
from torch import Tensor, nn

# Takes 28 s and 12 GiB: the largest message that gRPC can carry.
pytestmark = pytest.mark.serial

InferRequest = message("inference.ModelInferRequest")
InferResponse = message("inference.ModelInferResponse")
INFER = "/inference.GRPCInferenceService/ModelInfer"
MIB, GIB = 1 << 20, 1 << 30
MOST_BYTES = 2**31 - 1
# The client holds the bytes twice, in Python and in gRPC, and so does the server: in gRPC and in
# the message.
FREE_GIB = 12
# 20 s on two idle cores, mostly for page faults; a minute on busy ones.
SEND_SECONDS = 240

SUM = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_UINT8 dims: [ 1048576 ] } ]
output [ { name: "sum" data_type: TYPE_INT64 dims: [ 1 ] } ]
"""
REPEATED = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_UINT8 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_UINT8 dims: [ 1048576 ] } ]
"""


class Sum(nn.Module):
    """Maps 1 MiB to the sum of its bytes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1, keepdim=True)


class Repeated(nn.Module):
    """Maps a byte to 1 MiB of copies."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 1048576)


def need_memory(gib: float) -> None:
    """Skips the test if less memory is free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if free < gib * GIB:
        pytest.skip(f"{free / GIB:.1f} GiB of memory are free; needs {gib}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("large")
    models.export(directory / "models/sum", Sum(), config=SUM)
    models.export(directory / "models/repeated", Repeated(), config=REPEATED)
    flags = ("--cpu_threads=1",)
    with Server(directory / "models", "cpu*2", directory / "run", flags, data=False) as server:
        yield server


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def request_of(rows: int) -> bytes:
    """Returns a serialized ModelInferRequest for "sum" whose row r is filled with r mod 251. A message
    object would hold the bytes once more."""
    head = InferRequest(model_name="sum")
    head.inputs.add(name="x", datatype="UINT8", shape=[rows, MIB])
    tag = InferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number << 3 | 2
    front = head.SerializeToString() + varint(tag) + varint(rows * MIB)
    row = [bytes([value]) * MIB for value in range(251)]
    return b"".join([front, *(row[r % 251] for r in range(rows))])


def send(connection: grpc.Channel, wire: bytes) -> InferResponse:
    call = connection.unary_unary(INFER, response_deserializer=InferResponse.FromString)
    return call(wire, timeout=SEND_SECONDS)


def assert_sums(connection: grpc.Channel, rows: int) -> None:
    reply = send(connection, request_of(rows))
    assert list(reply.outputs[0].shape) == [rows, 1]
    sums = np.frombuffer(reply.raw_output_contents[0], np.int64)
    assert np.array_equal(sums, np.arange(rows) % 251 * MIB)


def test_request_of_nearly_2_gib_is_answered(server: Server) -> None:
    need_memory(FREE_GIB)
    with channel(server.address) as connection:
        assert_sums(connection, 1945)
        assert_sums(connection, 3)


def test_request_above_the_limit_is_rejected(server: Server) -> None:
    need_memory(FREE_GIB)
    with channel(server.address) as connection:
        with pytest.raises(grpc.RpcError) as caught:
            send(connection, bytes(MOST_BYTES + 1))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"larger than max ({MOST_BYTES + 1} vs. {MOST_BYTES})" in caught.value.details()
        assert_sums(connection, 3)


def test_reply_above_2_gib_is_rejected(server: Server) -> None:
    """2 KiB request 2 GiB. The request is rejected, and the server keeps serving."""
    need_memory(FREE_GIB)
    request = InferRequest(model_name="repeated")
    request.inputs.add(name="x", datatype="UINT8", shape=[2048, 1])
    request.raw_input_contents.append(bytes(2048))
    with channel(server.address) as connection:
        with pytest.raises(grpc.RpcError) as caught:
            send(connection, request.SerializeToString())
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "fewer rows" in caught.value.details()
        assert_sums(connection, 3)
