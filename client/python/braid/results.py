"""What the package returns: plain immutable values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from braid import _specs


@dataclass(frozen=True)
class Chunk:
    """One replica's share of a batch: `rows` of it ran on `device`."""

    device: str
    rows: int


@dataclass(frozen=True)
class OperationResult:
    """What every operation of a trainer returns.

    step: updates made so far.
    sequence: the operation's number, counted for each trainer from 1.
    durable_sequence: the number that the trainer's newest checkpoint holds; 0: there is none.
    chunks: how the batch was split, in its order; empty unless `report_split` was set.
    replayed: the operation had been applied before, and this is its recorded reply.
    """

    step: int
    sequence: int
    durable_sequence: int
    chunks: tuple[Chunk, ...]
    replayed: bool


@dataclass(frozen=True)
class StepResult(OperationResult):
    """loss: one number over the whole batch, before the update."""

    loss: float


@dataclass(frozen=True)
class ForwardResult(OperationResult):
    """outputs: all outputs by name, gathered. loss: None unless targets were given."""

    outputs: dict[str, np.ndarray]
    loss: float | None


@dataclass(frozen=True)
class TrainerInfo:
    """A trainer as it stands on the server.

    base_version: the version of `model` that the weights came from.
    loss, optimizer: as `Client.create_trainer` takes them.
    devices: those that hold a replica, the primary first.
    step: updates made.
    applied_sequence: number of the operation last applied; 0 before the first.
    durable_sequence: the number that the newest checkpoint holds; 0: there is none.
    accumulated: `forward_backward` calls since the last update.
    """

    name: str
    model: str
    base_version: int
    loss: dict[str, Any]
    optimizer: dict[str, Any]
    devices: tuple[str, ...]
    step: int
    applied_sequence: int
    durable_sequence: int
    accumulated: int


@dataclass(frozen=True)
class ServerMetadata:
    """extensions: the extensions of the Open Inference Protocol that the server implements."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True)
class ModelStatus:
    """A version of a model in the repository.

    version: None where the repository has none of this model.
    state: "READY" where it is served; else `reason` says why it is not.
    """

    name: str
    version: int | None
    state: str
    reason: str


@dataclass(frozen=True)
class TensorMetadata:
    """datatype: as on the wire ("FP32"). shape: -1 where any size will do; dim 0 is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """versions: those that are served."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True)
class Device:
    """A device slot: one worker thread and what it runs on.

    name: "cpu:0", "cuda:1"; several workers on one GPU: "cuda:0/0", "cuda:0/1".
    kind: "cpu" or "cuda".
    hardware: the GPU's product name; empty for CPU slots.
    threads: intra-op threads (CPU).
    busy_seconds: seconds worked, by phase ("forward", "backward", ...), of `uptime_seconds`.
    samples: rows that went through a forward pass, training included.
    uptime_seconds: seconds since the server started.
    """

    name: str
    kind: str
    hardware: str
    threads: int
    busy_seconds: dict[str, float]
    samples: int
    uptime_seconds: float


def operation_fields(status: Any) -> dict[str, Any]:
    """The fields of OperationResult from a braid.v1.OperationStatus."""
    return {
        "step": status.step,
        "sequence": status.applied_sequence,
        "durable_sequence": status.durable_sequence,
        "chunks": tuple(Chunk(chunk.device, chunk.rows) for chunk in status.chunks),
        "replayed": status.replayed,
    }


def trainer_info(proto: Any) -> TrainerInfo:
    """From a braid.v1.Trainer."""
    return TrainerInfo(
        name=proto.name,
        model=proto.model,
        base_version=proto.base_version,
        loss=_specs.loss_from_proto(proto.loss),
        optimizer=_specs.optimizer_from_proto(proto.optimizer),
        devices=tuple(proto.devices),
        step=proto.step,
        applied_sequence=proto.applied_sequence,
        durable_sequence=proto.durable_sequence,
        accumulated=proto.accumulated,
    )


def model_metadata(proto: Any) -> ModelMetadata:
    """From an inference.ModelMetadataResponse."""

    def tensors(protos: Any) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in protos)

    return ModelMetadata(
        name=proto.name,
        versions=tuple(int(version) for version in proto.versions),
        platform=proto.platform,
        inputs=tensors(proto.inputs),
        outputs=tensors(proto.outputs),
    )


def devices(proto: Any) -> list[Device]:
    """From a braid.v1.ListDevicesResponse."""
    return [
        Device(
            name=device.name,
            kind=type(device).Kind.Name(device.kind).removeprefix("KIND_").lower(),
            hardware=device.hardware,
            threads=device.threads,
            busy_seconds=dict(sorted(device.busy_seconds.items())),
            samples=device.samples,
            uptime_seconds=proto.uptime_seconds,
        )
        for device in proto.devices
    ]
