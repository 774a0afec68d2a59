"""The server's descriptors match tritonclient's, and health and reflection answer."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from e2e.support.protocol import CALL_SECONDS, channel
from e2e.support.server import Server
from google.protobuf import descriptor, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc import model_config_pb2, service_pb2

SERVICE = "inference.GRPCInferenceService"
SERVICES = {
    SERVICE,
    "braid.v1.TrainingService",
    "braid.v1.ModelService",
    "braid.v1.DataService",
    "braid.v1.DeviceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
}


@pytest.fixture(scope="module")
def server(serve: Callable[[str], Server]) -> Server:
    return serve("cpu*2")


@pytest.fixture(scope="module")
def reflection(server: Server) -> ProtoReflectionDescriptorDatabase:
    return ProtoReflectionDescriptorDatabase(channel(server.address))


@pytest.fixture(scope="module")
def pool(reflection: ProtoReflectionDescriptorDatabase) -> descriptor_pool.DescriptorPool:
    return descriptor_pool.DescriptorPool(reflection)


def all_messages(file: descriptor.FileDescriptor) -> list[descriptor.Descriptor]:
    def with_nested(message: descriptor.Descriptor) -> list[descriptor.Descriptor]:
        return [message] + [
            inner for nested in message.nested_types for inner in with_nested(nested)
        ]

    return [inner for outer in file.message_types_by_name.values() for inner in with_nested(outer)]


def all_enums(file: descriptor.FileDescriptor) -> list[descriptor.EnumDescriptor]:
    nested = [enum for message in all_messages(file) for enum in message.enum_types]
    return list(file.enum_types_by_name.values()) + nested


def describe_message(message: descriptor.Descriptor) -> dict:
    """Returns all properties of a message that affect its encoding."""

    def type_name(field: descriptor.FieldDescriptor) -> str:
        named = field.message_type or field.enum_type
        return named.full_name if named else ""

    return {
        field.name: (
            field.number,
            field.type,
            field.label,
            type_name(field),
            field.containing_oneof.name if field.containing_oneof else "",
        )
        for field in message.fields
    }


TRITON_MESSAGES = all_messages(service_pb2.DESCRIPTOR) + all_messages(model_config_pb2.DESCRIPTOR)
TRITON_ENUMS = all_enums(service_pb2.DESCRIPTOR) + all_enums(model_config_pb2.DESCRIPTOR)


@pytest.mark.parametrize("expected", TRITON_MESSAGES, ids=lambda message: message.full_name)
def test_message_fields_match_tritonclient(
    pool: descriptor_pool.DescriptorPool, expected: descriptor.Descriptor
) -> None:
    served = pool.FindMessageTypeByName(expected.full_name)
    assert describe_message(served) == describe_message(expected)


@pytest.mark.parametrize("expected", TRITON_ENUMS, ids=lambda enum: enum.full_name)
def test_enum_values_match_tritonclient(
    pool: descriptor_pool.DescriptorPool, expected: descriptor.EnumDescriptor
) -> None:
    served = pool.FindEnumTypeByName(expected.full_name)
    assert dict(_values(served)) == dict(_values(expected))


def test_service_methods_match_tritonclient(
    pool: descriptor_pool.DescriptorPool,
) -> None:
    expected = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert _methods(pool.FindServiceByName(SERVICE)) == _methods(expected)


def test_reflection_lists_every_service(reflection: ProtoReflectionDescriptorDatabase) -> None:
    assert SERVICES <= set(reflection.get_services())


def test_reflection_describes_every_service(
    reflection: ProtoReflectionDescriptorDatabase, pool: descriptor_pool.DescriptorPool
) -> None:
    for service in reflection.get_services():
        assert pool.FindServiceByName(service).methods, service
    expected = health_pb2.DESCRIPTOR.services_by_name["Health"]
    described = _methods(pool.FindServiceByName("grpc.health.v1.Health"))
    assert described.items() <= _methods(expected).items()


@pytest.mark.parametrize("service", ["", "liveness", "readiness", "mlp"])
def test_health_check_reports_serving(server: Server, service: str) -> None:
    health = health_pb2_grpc.HealthStub(channel(server.address))
    request = health_pb2.HealthCheckRequest(service=service)
    response = health.Check(request, timeout=CALL_SECONDS)
    assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_health_check_of_unknown_service_is_not_found(server: Server) -> None:
    health = health_pb2_grpc.HealthStub(channel(server.address))
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(health_pb2.HealthCheckRequest(service="nosuch"), timeout=CALL_SECONDS)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def _values(enum: descriptor.EnumDescriptor) -> list[tuple[str, int]]:
    return [(value.name, value.number) for value in enum.values]


def _methods(service: descriptor.ServiceDescriptor) -> dict[str, tuple]:
    return {
        method.name: (
            method.input_type.full_name,
            method.output_type.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.methods
    }
