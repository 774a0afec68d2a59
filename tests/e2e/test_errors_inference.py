"""Error table of inference: the status code and the message of each invalid request. The server
keeps serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from e2e.support import models
from e2e.support.error_checks import Rejection, assigner, ids
from e2e.support.inference import assert_close, expected
from e2e.support.protocol import Stub, channel, message
from e2e.support.server import Server

NOT_FOUND = grpc.StatusCode.NOT_FOUND
InferRequest = message("inference.ModelInferRequest")
A = np.arange(8, dtype=np.float32).reshape(2, 4)
B = np.ones((2, 3), np.float32)


def valid_request() -> InferRequest:
    """Returns a request for the model two_inputs, with a: [2, 4] and b: [2, 3]."""
    request = InferRequest(model_name="two_inputs")
    for name, array in (("a", A), ("b", B)):
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def tensor(index: int, **values: object) -> Callable[[InferRequest], None]:
    """Changes fields of the input at `index`."""

    def change(request: InferRequest) -> None:
        for field, value in values.items():
            if field == "shape":
                request.inputs[index].shape[:] = value
            else:
                setattr(request.inputs[index], field, value)

    return change


def raw(index: int, data: bytes) -> Callable[[InferRequest], None]:
    def change(request: InferRequest) -> None:
        request.raw_input_contents[index] = data

    return change


def together(*changes: Callable[[InferRequest], None]) -> Callable[[InferRequest], None]:
    def change(request: InferRequest) -> None:
        for each in changes:
            each(request)

    return change


def typed(request: InferRequest, count_a: int = 8, field: str = "fp32_contents") -> None:
    """Moves the request's tensors from raw to typed contents."""
    del request.raw_input_contents[:]
    getattr(request.inputs[0].contents, field).extend([1] * count_a)
    request.inputs[1].contents.fp32_contents.extend([1] * 6)


def mixed(request: InferRequest) -> None:
    request.inputs[1].contents.fp32_contents.extend([1] * 6)


def missing(request: InferRequest) -> None:
    del request.inputs[1]
    del request.raw_input_contents[1]


def extra(request: InferRequest) -> None:
    request.inputs.add(name="c", datatype="FP32", shape=[2, 3])
    request.raw_input_contents.append(B.tobytes())


def no_rows(request: InferRequest) -> None:
    for index, width in enumerate((4, 3)):
        request.inputs[index].shape[:] = [0, width]
        request.raw_input_contents[index] = b""


def half_precision_typed(request: InferRequest) -> None:
    request.CopyFrom(InferRequest(model_name="identity_fp16"))
    request.inputs.add(name="x", datatype="FP16", shape=[1, 2])
    request.inputs[0].contents.fp32_contents.extend([1, 2])


def overflow_typed(request: InferRequest) -> None:
    request.CopyFrom(InferRequest(model_name="identity_int8"))
    request.inputs.add(name="x", datatype="INT8", shape=[1, 2])
    request.inputs[0].contents.int_contents.extend([1, 300])


def shared_memory(request: InferRequest) -> None:
    request.inputs[0].parameters["shared_memory_region"].string_param = "region"


def output(request: InferRequest) -> Any:
    return request.outputs.add(name="output__0")


def parameter(
    name: str, of: Callable[[InferRequest], Any] = lambda request: request, **value: object
) -> Callable[[InferRequest], None]:
    """Sets a parameter on the part of the request that `of` returns: `int64_param=3`."""

    def change(request: InferRequest) -> None:
        ((kind, what),) = value.items()
        setattr(of(request).parameters[name], kind, what)

    return change


def output_twice(request: InferRequest) -> None:
    for _ in range(2):
        request.outputs.add(name="output__0")


def words(index: int) -> Callable[[InferRequest], None]:
    """Requests word `index` of an embedding of 1000 words."""

    def change(request: InferRequest) -> None:
        request.CopyFrom(InferRequest(model_name="words"))
        request.inputs.add(name="words", datatype="INT64", shape=[2])
        request.raw_input_contents.append(np.array([3, index]).tobytes())

    return change


THREE_ROWS = together(tensor(1, shape=[3, 3]), raw(1, np.ones((3, 3), np.float32).tobytes()))
WIDE = together(tensor(0, shape=[2, 5]), raw(0, bytes(40)))
DEEP = tensor(0, shape=[2, 4, 1])
FLAT = tensor(0, shape=[8])
SCALAR = together(tensor(0, shape=[]), raw(0, bytes(4)))
DOUBLE = together(tensor(0, datatype="FP64"), raw(0, bytes(64)))

ROWS = [
    Rejection("model", assigner(model_name="nosuch"), ("nosuch",), None, NOT_FOUND),
    Rejection("version", assigner(model_version="7"), ("two_inputs", "7"), None, NOT_FOUND),
    Rejection("label", assigner(model_version="new"), ("no label 'new'",), None, NOT_FOUND),
    Rejection(
        "version is neither number nor label",
        assigner(model_version="1.5"),
        ("version", "1.5"),
        "model_version",
    ),
    Rejection("name", tensor(1, name="c"), ("'c'", "'b'"), "inputs[1].name"),
    Rejection("missing input", missing, ("'b'",), "inputs"),
    Rejection("extra input", extra, ("'c'",), "inputs[2].name"),
    Rejection("duplicate input", tensor(1, name="a"), ("'a'",), "inputs[1].name"),
    Rejection("datatype", DOUBLE, ("'a'", "FP64", "FP32"), "inputs[0].datatype"),
    Rejection(
        "unknown datatype",
        tensor(0, datatype="FLOAT"),
        ("'a'", "FLOAT", "FP32"),
        "inputs[0].datatype",
    ),
    Rejection(
        "strings", tensor(0, datatype="BYTES"), ("'a'", "BYTES", "FP32"), "inputs[0].datatype"
    ),
    Rejection("rank too high", DEEP, ("'a'", "[2, 4, 1]", "[-1, 4]"), "inputs[0].shape"),
    Rejection("rank too low", FLAT, ("'a'", "[8]", "[-1, 4]"), "inputs[0].shape"),
    Rejection("no shape", SCALAR, ("'a'", "[]", "[-1, 4]"), "inputs[0].shape"),
    Rejection("dimension", WIDE, ("'a'", "[2, 5]", "[-1, 4]"), "inputs[0].shape"),
    Rejection("negative rows", tensor(0, shape=[-2, 4]), ("'a'", "[-2, 4]"), "inputs[0].shape"),
    Rejection(
        "more rows than memory", tensor(0, shape=[2**62, 4]), ("'a'",), "inputs[0].shape"
    ),
    Rejection("no rows", no_rows, ("'a'", "[0, 4]"), "inputs[0].shape"),
    Rejection(
        "rows that differ", THREE_ROWS, ("'b'", "[3, 3]", "'a'", "[2, 4]"), "inputs"
    ),
    Rejection("a byte short", raw(0, bytes(31)), ("'a'", "31", "32"), "raw_input_contents[0]"),
    Rejection("a byte long", raw(1, bytes(25)), ("'b'", "25", "24"), "raw_input_contents[1]"),
    Rejection(
        "too few raw contents",
        lambda request: request.raw_input_contents.pop(),
        ("1", "2"),
        "raw_input_contents",
    ),
    Rejection(
        "too many raw contents",
        lambda request: request.raw_input_contents.append(b""),
        ("3", "2"),
        "raw_input_contents",
    ),
    Rejection("raw and typed contents", mixed, ("'b'",), "inputs[1].contents"),
    Rejection("element short", lambda r: typed(r, 7), ("'a'", "7", "8"), "inputs[0].contents"),
    Rejection("no contents", lambda r: typed(r, 0), ("'a'", "0", "8"), "inputs[0].contents"),
    Rejection(
        "contents of another type",
        lambda request: typed(request, field="int64_contents"),
        ("'a'", "int64_contents", "fp32_contents"),
        "inputs[0].contents.int64_contents",
    ),
    Rejection("typed half precision", half_precision_typed, ("'x'", "FP16"), "inputs[0].contents"),
    Rejection("typed overflow", overflow_typed, ("'x'", "300", "INT8"), "inputs[0].contents"),
    Rejection(
        "shared memory",
        shared_memory,
        ("inputs[0]", "shared_memory_region"),
        None,
        grpc.StatusCode.UNIMPLEMENTED,
    ),
    Rejection(
        "shared memory offset alone",
        parameter("shared_memory_offset", int64_param=3, of=lambda r: r.inputs[0]),
        ("shared_memory_offset", "shared_memory_region"),
        "inputs[0].parameters.shared_memory_offset",
    ),
    Rejection(
        "shared memory for an output",
        parameter("shared_memory_region", string_param="r", of=output),
        ("outputs[0]", "shared_memory_region", "--allow_client_shared_memory"),
        None,
        grpc.StatusCode.UNIMPLEMENTED,
    ),
    Rejection(
        "sequence",
        parameter("sequence_id", int64_param=4),
        ("sequence_id",),
        None,
        grpc.StatusCode.UNIMPLEMENTED,
    ),
    Rejection(
        "reserved parameter",
        parameter("triton_anything", bool_param=True),
        ("triton_anything",),
        None,
        grpc.StatusCode.UNIMPLEMENTED,
    ),
    Rejection(
        "timeout of another kind",
        parameter("timeout", string_param="1s"),
        ("timeout", "1s", "integer"),
        "parameters.timeout",
    ),
    Rejection(
        "negative timeout",
        parameter("timeout", int64_param=-1),
        ("timeout", "-1", "microseconds"),
        "parameters.timeout",
    ),
    Rejection(
        "negative priority",
        parameter("priority", int64_param=-1),
        ("priority", "-1"),
        "parameters.priority",
    ),
    Rejection(
        "negative classes",
        parameter("classification", int64_param=-1, of=output),
        ("classification", "-1"),
        "outputs[0].parameters.classification",
    ),
    Rejection(
        "classes of another kind",
        parameter("classification", bool_param=True, of=output),
        ("classification", "true"),
        "outputs[0].parameters.classification",
    ),
    Rejection("output twice", output_twice, ("output__0", "twice"), "outputs[1].name"),
    Rejection(
        "unknown output",
        lambda request: request.outputs.add(name="nosuch"),
        ("nosuch", "output__0"),
        "outputs[0].name",
    ),
    Rejection(
        "index out of range", words(1000), ("'words'", "1000 at index", "0 to 999"), "inputs[0]"
    ),
    Rejection("negative index", words(-1), ("'words'", "-1 at index", "0 to 999"), "inputs[0]"),
]


@pytest.fixture(scope="module")
def stub(serve: Callable[[str], Server]) -> Stub:
    return Stub(channel(serve("cpu*2").address), "inference.GRPCInferenceService")


def assert_outputs(stub: Stub) -> None:
    """Checks that the valid request still succeeds."""
    reply = stub.ModelInfer(valid_request())
    values = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(2, 3)
    assert_close(values, expected(models.make("two_inputs"), A, B))


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_invalid_request_is_rejected(stub: Stub, row: Rejection) -> None:
    row.expect(stub.ModelInfer, valid_request())
    assert_outputs(stub)


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
@pytest.mark.parametrize(("name", "version"), [("nosuch", ""), ("mlp", "7")])
def test_metadata_of_missing_model_is_not_found(
    stub: Stub, method: str, name: str, version: str
) -> None:
    request = message(f"inference.{method}Request")(name=name, version=version)
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request)
    assert caught.value.code() == NOT_FOUND
    assert (version or name) in caught.value.details()


@pytest.mark.parametrize("method", ["SystemSharedMemoryRegister", "CudaSharedMemoryRegister"])
def test_unsupported_method_reports_the_reason(stub: Stub, method: str) -> None:
    request = message(f"inference.{method}Request")()
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "--allow_client_shared_memory" in caught.value.details()
