"""The protocol's messages and methods, made from protocol.binpb when the package is imported.

They live in a descriptor pool of their own. protobuf's default pool takes every message name once
in a process, and tritonclient registers its `inference.*` messages there; with a private pool both
packages can be used side by side, in whichever versions.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _files() -> list[Any]:
    data = importlib.resources.files("braid").joinpath("protocol.binpb").read_bytes()
    # A file comes after those that it imports, which is the order that a pool wants.
    return list(descriptor_pb2.FileDescriptorSet.FromString(data).file)


_FILES = _files()
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


@dataclass(frozen=True)
class Method:
    """A method of a service. Request and response are message classes."""

    path: str
    request: Any
    response: Any
    streams_response: bool


def message(full_name: str) -> Any:
    """The class of the message `full_name`, as in `braid.v1.Tensor`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))


def methods(service_name: str) -> dict[str, Method]:
    """All methods of the service `service_name`, as in `braid.v1.TrainingService`, by name."""
    return {
        method.name: Method(
            path=f"/{service_name}/{method.name}",
            request=message(method.input_type.lstrip(".")),
            response=message(method.output_type.lstrip(".")),
            streams_response=method.server_streaming,
        )
        for file in _FILES
        for service in file.service
        if f"{file.package}.{service.name}" == service_name
        for method in service.method
    }


INFERENCE = methods("inference.GRPCInferenceService")
TRAINING = methods("braid.v1.TrainingService")
DEVICES = methods("braid.v1.DeviceService")
