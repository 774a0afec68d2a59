"""What the package returns: plain immutable values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Chunk:
    """One replica's share of a batch, in one stage: `rows` of it ran on `device`.

    stage: the stage's path; empty for the whole model.
    input_shapes, output_shapes: of the stage's inputs and outputs, in their order.
    """

    device: str
    rows: int
    stage: str = ""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class OperationResult:
    """What every operation of a trainer returns.

    step: updates made so far.
    sequence: the operation's number, counted for each trainer from 1.
    durable_sequence: the number that the trainer's newest checkpoint holds; 0: there is none.
    chunks: how the batch was split, in its order; empty unless `report_split` was set.
    replayed: the operation had been applied before, and this is its recorded reply.
    phases: seconds by phase ("queue", "forward", "reduce", ...), in their order; each is the
        longest of the workers that took part.
    skipped: the loss or a gradient was not finite, and nothing was updated.
    gradient_norm: of all gradients before clipping; None but for updates clipped by norm.
    lr: that the update used, for parameters outside groups; None for what makes no update.
    reply_lost: the operation was applied, but the connection broke before its reply came, and the
        server keeps that of the last one alone. Then `loss` is nan, `step` and `durable_sequence`
        are a later operation's, and the rest is empty. Only of operations of a `Stream`.
    """

    step: int
    sequence: int
    durable_sequence: int
    chunks: tuple[Chunk, ...]
    replayed: bool
    phases: dict[str, float]
    skipped: bool
    gradient_norm: float | None
    lr: float | None
    reply_lost: bool


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
class EvaluationResult:
    """Loss and metrics over all rows of an evaluation.

    loss: None where the client computes it.
    metrics: by name, those that were asked for and are one number.
    confusion: int64 [C, C], of target class t predicted as class p at [t, p]; None unless asked
        for.
    step: updates that the trainer had made.
    """

    loss: float | None
    rows: int
    metrics: dict[str, float]
    confusion: np.ndarray | None
    step: int


@dataclass(frozen=True)
class Checkpoint:
    """A trainer's state on the server's disk.

    step, sequence: updates made and the operation last applied, as it holds them.
    bytes: on disk.
    created: in UTC.
    """

    name: str
    step: int
    sequence: int
    bytes: int
    created: datetime


@dataclass(frozen=True)
class DeviceMemory:
    """What a trainer takes of a device's memory, in bytes, now and at most so far."""

    device: str
    current_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class TrainerInfo:
    """A trainer as it stands on the server.

    base_version: the version of `model` that the weights came from.
    losses, optimizer: as `Client.create_trainer` takes them; a loss module comes without its bytes.
    options: the other arguments of `Client.create_trainer`, without those at their default.
    devices: those that hold a replica, the primary first.
    step: updates made.
    applied_sequence: number of the operation last applied; 0 before the first.
    durable_sequence: the number that the newest checkpoint holds; 0: there is none.
    accumulated: `forward_backward` and `backward` calls since the last update.
    skipped: batches and updates left out because a loss or gradient was not finite.
    lr: of the next update, for parameters outside groups.
    memory: one for each device that it uses.
    id: tells it from others that have had its name.
    last_operator: who made it stand where it does: the client of the operation applied last, or,
        since a checkpoint was restored, a text of the server's own; "": nobody, or not told.
    notes: differences between a training step and the same step on one device, one sentence each.
    """

    name: str
    model: str
    base_version: int
    losses: list[dict[str, Any]]
    optimizer: dict[str, Any]
    options: dict[str, Any]
    devices: tuple[str, ...]
    step: int
    applied_sequence: int
    durable_sequence: int
    accumulated: int
    skipped: int
    lr: float
    memory: list[DeviceMemory]
    id: str
    last_operator: str
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> dict[str, Any]:
        """The only loss. ValueError if there are several, or none."""
        (loss,) = self.losses
        return loss


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
    """versions: those that are served.

    origin: of a version that a trainer published its "trainer", "step", "sequence", "created" and
        "checkpoint" (of just that state, if there is one); empty for one from the repository.
    """

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    origin: dict[str, str]


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


_ORIGIN = "origin."


def model_metadata(proto: Any, config: Any) -> ModelMetadata:
    """From an inference.ModelMetadataResponse and an inference.ModelConfig."""

    def tensors(protos: Any) -> tuple[TensorMetadata, ...]:
        return tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in protos)

    return ModelMetadata(
        name=proto.name,
        versions=tuple(int(version) for version in proto.versions),
        platform=proto.platform,
        inputs=tensors(proto.inputs),
        outputs=tensors(proto.outputs),
        origin={
            key[len(_ORIGIN) :]: value.string_value
            for key, value in config.parameters.items()
            if key.startswith(_ORIGIN)
        },
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
