"""Tokens and certificates, and calls that present them."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import torch
from e2e.support import models, protocol

SERVICES = (
    "inference.GRPCInferenceService",
    "braid.v1.TrainingService",
    "braid.v1.ModelService",
    "braid.v1.DataService",
    "braid.v1.JobService",
    "braid.v1.DeviceService",
)
_CALL_SECONDS = 30
_DAYS = 30


def token_line(grants: str, token: str, name: str) -> str:
    return f"{grants} sha256:{hashlib.sha256(token.encode()).hexdigest()} {name}\n"


def bearer(token: str | None) -> list[tuple[str, str]]:
    return [] if token is None else [("authorization", f"Bearer {token}")]


# The descriptor of every method of every service, by its name.
METHODS = {
    method.name: method
    for service in SERVICES
    for method in protocol.POOL.FindServiceByName(service).methods
}


def export_model(directory: Path) -> None:
    """Writes a small model, for tests that accept any model."""
    models.export(directory, models.make("chain"), inputs=[torch.zeros(1, 10)])


def request_naming(method: Any, model: str, trainer: str) -> Any:
    """Returns a request that names the model or the trainer if it has such a field."""
    request = protocol.message(method.input_type.full_name)()
    fields = request.DESCRIPTOR.fields_by_name
    if method.name == "Stream":
        request.step.trainer = trainer
    for field, value in (("model_name", model), ("model", model), ("trainer", trainer)):
        if field in fields:
            setattr(request, field, value)
    if "name" in fields:
        of_trainer = "Trainer" in method.name
        request.name = trainer if of_trainer else model
    return request


def call(on: grpc.Channel, method: Any, request: Any, metadata: Any) -> Any:
    """Calls a method with one message. Returns the last reply, or None if there was none."""
    kinds = {True: "stream", False: "unary"}
    make = getattr(on, f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}")
    stub = make(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=protocol.message(method.output_type.full_name).FromString,
    )
    argument = iter([request]) if method.client_streaming else request
    reply = stub(argument, metadata=metadata, timeout=_CALL_SECONDS)
    if not method.server_streaming:
        return reply
    last = None
    for last in reply:
        pass
    return last


def outcome(on: grpc.Channel, method: Any, request: Any, metadata: Any) -> tuple[str, str]:
    """Calls the method. Returns the name of the status code and the message."""
    try:
        call(on, method, request, metadata)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key, in PEM."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> tuple[bytes, bytes]:
        """Key and certificate, in the order in which gRPC takes them."""
        return self.key.read_bytes(), self.certificate.read_bytes()


class Authority:
    """A self-signed certificate authority. Creates `directory` for its files."""

    def __init__(self, directory: Path, name: str = "Test authority") -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._made = 0
        self.certificate = directory / "ca.pem"
        self._key = directory / "ca-key.pem"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", _DAYS, "-subj", f"/CN={name}"),
            *("-keyout", self._key, "-out", self.certificate),
        )

    def issue(self, *names: str, common_name: str = "", days: int = _DAYS) -> Pair:
        """Issues a certificate with these subject alternative names, such as "DNS:localhost".

        days: validity in days; negative for a certificate that has expired.
        """
        self._made += 1
        stem = self._directory / f"{self._made}"
        pair = Pair(stem.with_suffix(".pem"), Path(f"{stem}-key.pem"))
        request = stem.with_suffix(".csr")
        openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"/CN={common_name}" if common_name else "/"),
            *(("-addext", f"subjectAltName={','.join(names)}") if names else ()),
            *("-keyout", pair.key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-copy_extensions", "copy", "-days", days),
            *("-out", pair.certificate),
        )
        return pair

    def issue_server(self, days: int = _DAYS) -> Pair:
        """Issues a certificate for a server on this machine."""
        return self.issue("DNS:localhost", "IP:127.0.0.1", days=days)
