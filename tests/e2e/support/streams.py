"""The method Stream, raw: for requests that no client library would send."""

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
    """The operation as a message of a stream."""
    return StreamRequest(**{_FIELDS[method]: request})


def open_stream(address: str, requests: Iterable[Any]) -> Any:
    """gRPC's call, whose replies are iterated: braid.v1.StreamResponse messages."""
    method = channel(address).stream_stream(
        "/braid.v1.TrainingService/Stream",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=message("braid.v1.StreamResponse").FromString,
    )
    return method(iter(requests), timeout=CALL_SECONDS)


def exchange(address: str, requests: Iterable[Any]) -> tuple[list[Any], grpc.RpcError | None]:
    """The replies, each the message inside, and how the call failed, if it did."""
    replies = []
    try:
        for reply in open_stream(address, requests):
            replies.append(getattr(reply, reply.WhichOneof("reply")))
    except grpc.RpcError as error:
        return replies, error
    return replies, None


def load_cutting_proxy() -> type:
    """The proxy of the Python client's tests, which are no package."""
    path = ROOT / "client/python/tests/cutting_proxy.py"
    spec = importlib.util.spec_from_file_location("cutting_proxy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CuttingProxy
