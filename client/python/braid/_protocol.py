"""Messages and methods of the protocol, created from protocol.binpb on import.

They use a private descriptor pool. protobuf's default pool accepts each message name once per
process, and tritonclient registers its `inference.*` messages there. A private pool allows any
versions of both packages in one process.
"""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _files() -> list[Any]:
    data = importlib.resources.files("braid").joinpath("protocol.binpb").read_bytes()
    # Files follow their imports, as a pool requires.
    return list(descriptor_pb2.FileDescriptorSet.FromString(data).file)


_FILES = _files()
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())


@dataclass(frozen=True)
class Method:
    """Method of a service. request, response: message classes."""

    path: str
    request: Any
    response: Any
    streams_response: bool


def message(full_name: str) -> Any:
    """Returns the class of the message `full_name`, for example `braid.v1.Tensor`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(full_name))


def methods(service_name: str) -> dict[str, Method]:
    """Returns all methods of a service by name, for example of `braid.v1.DeviceService`."""
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
MODELS = methods("braid.v1.ModelService")
DEVICES = methods("braid.v1.DeviceService")
JOBS = methods("braid.v1.JobService")
DATA = methods("braid.v1.DataService")
