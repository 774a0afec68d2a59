"""Health probes over gRPC and HTTP."""

from __future__ import annotations

import http.client

from e2e.support.protocol import CALL_SECONDS, channel
from e2e.support.server import Server
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(server: Server, port: str) -> health_pb2_grpc.HealthStub:
    return health_pb2_grpc.HealthStub(channel(f"127.0.0.1:{server.ready[port]}"))


def check(server: Server, port: str, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return health(server, port).Check(request, timeout=CALL_SECONDS).status


def get(server: Server, path: str, method: str = "GET") -> tuple[int, str]:
    """Returns (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ready["metrics_port"], timeout=30)
    connection.request(method, path)
    reply = connection.getresponse()
    return reply.status, reply.read().decode()
