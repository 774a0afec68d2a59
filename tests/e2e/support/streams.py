"""Raw calls of the Stream method, for requests that no client library would send."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

import grpc
from e2e.support.protocol import CALL_SECONDS, channel, message
from e2e.support.server import ROOT

_FIELDS = {
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
    return StreamRequest(**{_FIELDS[method]: request})


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
