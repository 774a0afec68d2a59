"""Every numeric datatype round-trips bit for bit, as raw bytes and as typed contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models
from e2e.support.inference import infer_input
from e2e.support.protocol import CALL_SECONDS, channel
from e2e.support.server import Server
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

# Datatype → the field of InferTensorContents that carries it. FP16 and BF16 have none.
CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
ROWS = [1, 3, 130]


def sample(datatype: str, rows: int) -> torch.Tensor:
    """Returns [rows, 4] of the datatype: the extremes in the first row, then arbitrary values."""
    dtype = models.IDENTITY_TYPES[datatype]
    generator = torch.Generator().manual_seed(rows)
    if dtype == torch.bool:
        extremes = torch.tensor([[True, False, False, True]])
        return torch.cat([extremes, torch.rand(rows - 1, 4, generator=generator) < 0.5])
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        first = torch.tensor([[limits.min, limits.max, limits.tiny, -0.0]], dtype=dtype)
        return torch.cat([first, torch.randn(rows - 1, 4, generator=generator).to(dtype)])
    limits = torch.iinfo(dtype)
    values = np.array([[limits.min, limits.max, 1, 0]] * rows, dtype=datatype.lower())
    values[1:] = np.arange(4 * (rows - 1)).reshape(-1, 4) % 120
    return torch.from_numpy(values)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module")
def stub(
    serve: Callable[..., Server], served_format: str
) -> service_pb2_grpc.GRPCInferenceServiceStub:
    server = serve("cpu*2", served_format)
    return service_pb2_grpc.GRPCInferenceServiceStub(channel(server.address))


def in_each_format(datatypes: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrizes over datatypes, and formats that can represent the datatype's model."""
    held = [
        (format, datatype)
        for format in models.FORMATS
        for datatype in datatypes
        if f"identity_{datatype.lower()}" in models.names_in(format)
    ]
    return pytest.mark.parametrize(
        ("served_format", "datatype"), held, indirect=["served_format"], scope="session"
    )


def request_of(datatype: str, rows: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=f"identity_{datatype.lower()}")
    request.inputs.add(name="x", datatype=datatype, shape=[rows, 4])
    return request


@pytest.mark.parametrize("rows", ROWS)
@in_each_format(models.IDENTITY_TYPES)
def test_raw_contents_round_trip(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, datatype: str, rows: int
) -> None:
    data = raw_bytes(sample(datatype, rows))
    request = request_of(datatype, rows)
    request.raw_input_contents.append(data)
    reply = stub.ModelInfer(request, timeout=CALL_SECONDS)
    assert [(output.name, output.datatype, output.shape) for output in reply.outputs] == [
        ("y", datatype, [rows, 4])
    ]
    assert list(reply.raw_output_contents) == [data]


@pytest.mark.parametrize("rows", ROWS)
@in_each_format(CONTENTS)
def test_typed_contents_round_trip(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, datatype: str, rows: int
) -> None:
    values = sample(datatype, rows)
    request = request_of(datatype, rows)
    contents = getattr(request.inputs[0].contents, CONTENTS[datatype])
    contents.extend(values.numpy().flatten().tolist())
    reply = stub.ModelInfer(request, timeout=CALL_SECONDS)
    assert [(output.datatype, output.shape) for output in reply.outputs] == [(datatype, [rows, 4])]
    assert list(reply.raw_output_contents) == [raw_bytes(values)]


@pytest.mark.parametrize("rows", ROWS)
def test_all_datatypes_in_one_request(
    stub: service_pb2_grpc.GRPCInferenceServiceStub, rows: int
) -> None:
    request = service_pb2.ModelInferRequest(model_name="every_type")
    wanted = {}
    for datatype in models.EXPORTED_TYPES:
        name = datatype.lower()
        request.inputs.add(name=name, datatype=datatype, shape=[rows, 4])
        data = raw_bytes(sample(datatype, rows))
        request.raw_input_contents.append(data)
        wanted[f"same_{name}"] = (datatype, [rows, 4], data)
    reply = stub.ModelInfer(request, timeout=CALL_SECONDS)
    outputs = zip(reply.outputs, reply.raw_output_contents, strict=True)
    assert {
        output.name: (output.datatype, output.shape, data) for output, data in outputs
    } == wanted


# Types of tritonclient. Older releases use float32 for bfloat16.
HALVES = {name: triton_to_np_dtype(name) for name in ("BF16", "FP16")}


@in_each_format(HALVES)
def test_half_precision_round_trip_with_tritonclient(
    serve: Callable[..., Server], served_format: str, datatype: str
) -> None:
    x = np.array([[1.0, -2.5, 0.0, 96.0]], dtype=HALVES[datatype])
    with triton.InferenceServerClient(serve("cpu*2", served_format).address) as client:
        tensors = [infer_input("x", x, datatype)]
        model = f"identity_{datatype.lower()}"
        result = client.infer(model, tensors, client_timeout=CALL_SECONDS)
    np.testing.assert_array_equal(result.as_numpy("y"), x)
