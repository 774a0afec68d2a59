"""Raw protocol messages and calls, for requests that no client library would send."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from e2e.support.server import ROOT

CALL_SECONDS = 60
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
]
_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


def _load() -> descriptor_pool.DescriptorPool:
    # A separate pool: tritonclient registers messages with the same names in the default pool.
    pool = descriptor_pool.DescriptorPool()
    data = (ROOT / "client/python/braid/protocol.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()


def message(name: str) -> Any:
    """Returns the class of a message, such as "braid.v1.StepRequest"."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, CHANNEL_OPTIONS)


class Stub:
    """The methods of a service by name, each taking its request message: stub.Step(request).

    service: the full name, "braid.v1.TrainingService".
    Every call has a deadline of CALL_SECONDS.
    """

    def __init__(self, on: grpc.Channel, service: str) -> None:
        for method in POOL.FindServiceByName(service).methods:
            make = getattr(on, f"{_kind(method.client_streaming)}_{_kind(method.server_streaming)}")
            call = make(
                f"/{service}/{method.name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=message(method.output_type.full_name).FromString,
            )
            setattr(self, method.name, _Call(call))


def _kind(streaming: bool) -> str:
    return "stream" if streaming else "unary"


class _Call:
    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._call(request, timeout=CALL_SECONDS, **options)

    def future(self, request: Any) -> grpc.Future:
        return self._call.future(request, timeout=CALL_SECONDS)


def tensor(name: str, array: np.ndarray) -> Any:
    """Returns a braid.v1.Tensor with the shape, datatype and bytes of `array`."""
    return message("braid.v1.Tensor")(
        name=name,
        datatype=_DATATYPES[array.dtype.name],
        shape=array.shape,
        data=array.tobytes(),
    )


def violated_fields(error: grpc.RpcError) -> list[str]:
    """Returns the fields that the status's google.rpc.BadRequest names."""
    metadata = dict(error.trailing_metadata() or ())
    status = message("google.rpc.Status").FromString(metadata.get("grpc-status-details-bin", b""))
    bad_request = message("google.rpc.BadRequest")()
    return [
        violation.field
        for detail in status.details
        if detail.Unpack(bad_request)
        for violation in bad_request.field_violations
    ]


_STREAM_FIELDS = {
    "Step": "step",
    "ForwardBackward": "forward_backward",
    "OptimStep": "optim_step",
    "Forward": "forward",
    "Backward": "backward",
    "Publish": "publish",
}
StreamRequest = message("braid.v1.StreamRequest")


def operation(method: str, request: Any) -> Any:
    """Wraps an operation in a stream message."""
    return StreamRequest(**{_STREAM_FIELDS[method]: request})


def open_stream(address: str, requests: Iterable[Any]) -> Any:
    """Returns the gRPC call, an iterator of braid.v1.StreamResponse."""
    method = channel(address).stream_stream(
        "/braid.v1.TrainingService/Stream",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=message("braid.v1.StreamResponse").FromString,
    )
    return method(iter(requests), timeout=CALL_SECONDS)


def exchange(address: str, requests: Iterable[Any]) -> tuple[list[Any], grpc.RpcError | None]:
    """Returns the unwrapped replies, and the error if the call failed."""
    replies = []
    try:
        for reply in open_stream(address, requests):
            replies.append(getattr(reply, reply.WhichOneof("reply")))
    except grpc.RpcError as error:
        return replies, error
    return replies, None


def load_cutting_proxy() -> type:
    """Loads the proxy from the Python client's tests, which are not a package."""
    path = ROOT / "client/python/tests/cutting_proxy.py"
    spec = importlib.util.spec_from_file_location("cutting_proxy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CuttingProxy
