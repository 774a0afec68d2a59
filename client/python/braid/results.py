"""Immutable values that the package returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Chunk:
    """Rows of a batch that one replica of a stage processed.

    stage: path of the stage; empty for the whole model.
    input_shapes, output_shapes: shapes of the stage's inputs and outputs, in order.
    """

    device: str
    rows: int
    stage: str = ""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class OperationResult:
    """Result of a trainer's operation.

    step: number of updates so far.
    sequence: sequence number of the operation, from 1 per trainer.
    durable_sequence: sequence number of the last operation that a crash of the server cannot lose;
        0: none.
    chunks: split of the batch, in order; empty without `report_split`.
    replayed: True if the operation was applied before; this is its recorded reply.
    phases: seconds by phase ("queue", "forward", "reduce", ...), in order; the maximum over
        workers.
    skipped: True if the loss or a gradient was not finite, so nothing was updated.
    gradient_norm: norm of all gradients before clipping; None unless clipping by norm.
    lr: learning rate of the update, for parameters outside groups; None without an update.
    lrs: learning rates of the update by the patterns of `parameter_groups`, "" for parameters
        outside groups. Only of groups with parameters to update; empty without an update.
    reply_lost: True if the operation was applied, but its reply was lost with the connection. The
        server keeps only the last reply. Then `loss` is NaN, `step` and `durable_sequence` are
        those of a later operation, and other fields are empty. Only for a `Stream`.
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
    lrs: dict[str, float]
    reply_lost: bool


@dataclass(frozen=True)
class StepResult(OperationResult):
    """Result of a training step. loss: loss over the whole batch, before the update."""

    loss: float


@dataclass(frozen=True)
class ForwardResult(OperationResult):
    """Result of a forward pass. outputs: gathered outputs by name. loss: None without targets."""

    outputs: dict[str, np.ndarray]
    loss: float | None


@dataclass(frozen=True)
class EvaluationResult:
    """Loss and metrics over all rows of an evaluation.

    loss: None for loss_mode "client".
    metrics: requested metrics with a single value, by name.
    confusion: int64 [C, C], counts of target class t predicted as class p at [t, p]; None unless
        requested.
    step: number of updates of the trainer.
    """

    loss: float | None
    rows: int
    metrics: dict[str, float]
    confusion: np.ndarray | None
    step: int


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint of a trainer on the server's disk.

    step, sequence: number of updates and last applied operation in the checkpoint.
    bytes: size on disk.
    created: creation time in UTC.
    """

    name: str
    step: int
    sequence: int
    bytes: int
    created: datetime


@dataclass(frozen=True)
class RecordedOperation:
    """Operation in a trainer's journal.

    line: each restore starts a new line of operations, with a larger number.
    sequence: sequence number; after a restore, numbers repeat in the new line.
    kind: the operation: "Step", "ForwardBackward", "OptimStep", "Forward", "Backward", "Publish".
    time: when it began, in UTC.
    batch_id: argument of the operation; "": none.
    error: why it failed; a failed operation changes nothing. "": it did not fail.
    step: number of updates after it. None if its result is not known, because it failed, is still
        running, or the machine crashed before the result was on disk; then `loss`,
        `gradient_norm`, `lr` and `published` are None, too.
    loss: None for an operation without a loss; NaN if it was not finite.
    gradient_norm, lr, skipped: see `OperationResult`.
    published: model and version that it published; None for other operations.
    """

    line: int
    sequence: int
    kind: str
    time: datetime
    batch_id: str
    error: str
    step: int | None
    loss: float | None
    gradient_norm: float | None
    lr: float | None
    skipped: bool
    published: tuple[str, int] | None


@dataclass(frozen=True)
class ReplayDifference:
    """First difference between a replay and what was recorded.

    sequence, step, batch_id: of the operation, see `RecordedOperation`.
    checkpoint: name of the checkpoint that differs; "": the operation's results differ.
    recorded, replayed: the results as JSON. Of a checkpoint, both: the name of the tensor that
        differs.
    """

    sequence: int
    step: int
    batch_id: str
    checkpoint: str
    recorded: str
    replayed: str


@dataclass(frozen=True)
class ReplayReport:
    """Result of `Trainer.replay`.

    first_step, last_step: the steps that were compared, inclusive.
    operations, checkpoints: number compared.
    difference: the first difference, at which the replay ended; None: everything was equal.
    recorded_with, replayed_with: PyTorch version, devices and thread counts of the recorded
        operations and of the replay. If they differ, small differences are expected.
    """

    first_step: int
    last_step: int
    operations: int
    checkpoints: int
    difference: ReplayDifference | None
    recorded_with: str
    replayed_with: str


@dataclass(frozen=True)
class DeviceMemory:
    """Current and peak memory of a trainer on one device, in bytes."""

    device: str
    current_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class TrainerInfo:
    """State of a trainer on the server.

    base_version: version of `model` that the weights started from.
    losses, optimizer: arguments of `Client.create_trainer`; a loss module has no bytes.
    options: other arguments of `Client.create_trainer`, with the placement in use and most defaults.
    devices: devices with a replica, the primary first.
    step: number of updates.
    applied_sequence: sequence number of the last applied operation; 0: none.
    durable_sequence: sequence number of the last operation that a crash of the server cannot lose;
        0: none.
    accumulated: `forward_backward` and `backward` calls since the last update.
    skipped: batches and updates skipped because a loss or gradient was not finite.
    lr: learning rate of the next update, for parameters outside groups.
    lrs: learning rates of the next update by the patterns of `parameter_groups`, "" for parameters
        outside groups. Only of groups with parameters to update.
    memory: memory per device.
    id: unique ID, which distinguishes trainers that had the same name.
    last_operator: ID of the client of the last operation, or a new ID after a checkpoint was
        restored; "": none or unknown.
    notes: differences between a training step and the same step on one device, one sentence each.
        Batch norm without `sync_batch_norm` is not among them.
    on_disk: the trainer uses no memory: the server reads it from disk when it is used. In the list
        of all trainers, one that was not used since the start of the server has only the arguments
        of its creation, its step and its sequence numbers.
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
    lrs: dict[str, float]
    memory: list[DeviceMemory]
    id: str
    last_operator: str
    notes: tuple[str, ...] = ()
    on_disk: bool = False

    @property
    def loss(self) -> dict[str, Any]:
        """The only loss. Raises ValueError if there are several, or none."""
        (loss,) = self.losses
        return loss


@dataclass(frozen=True)
class ServerMetadata:
    """Server information. extensions: implemented extensions of the Open Inference Protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True)
class ModelStatus:
    """Version of a model in the repository.

    version: None if the model has no version.
    state: "READY" if it is served.
    reason: why it is not served; if it is served, why the last load failed, or empty.
    """

    name: str
    version: int | None
    state: str
    reason: str


@dataclass(frozen=True)
class VersionedOutputs:
    """Outputs of a model, and the version that computed them.

    outputs: by name, like the result of `Client.infer`.
    training_step: number of updates of the trainer that published the version; None: no trainer
        published it, or the server is older than this package.
    """

    outputs: dict[str, np.ndarray | bool | int | float]
    version: int
    training_step: int | None


@dataclass(frozen=True)
class ModelVersion:
    """Version of a model, served or not.

    origin: "exported" into the model repository, "published" by a trainer, "uploaded", or
        "unspecified" if the files are gone.
    trainer, step: trainer that published the version, and its number of updates; else "" and 0.
    state: "ready": served; "idle": on disk, but not loaded; "unavailable": failed to load, was
        unloaded, or is pinned or labelled although its files are gone; "ignored": folder in the
        repository whose number belongs to another version.
    reason: why the version is not served, for "unavailable" and "ignored"; for "ready", why the
        last load failed, or "".
    serving: True for the version that requests without a version get.
    pinned: True if `Client.pin` or `Client.rollback` chose the version.
    labels: labels that point at the version, sorted.
    created: creation time in UTC; for "exported", the modification time of the model file; None:
        unknown.
    durability: state of the version's files: "durable": on disk; "pending": being written, lost if
        the server crashes now, unless the trainer has a journal; "superseded": replaced before it was written, so it has no files;
        "failed": could not be written, served until it is replaced; "none": the server has no data
        directory; "unspecified": the server is older than this package.
    durability_reason: why, for "superseded" and "failed".
    """

    model: str
    version: int
    origin: str
    trainer: str
    step: int
    state: str
    reason: str
    serving: bool
    pinned: bool
    labels: tuple[str, ...]
    created: datetime | None
    durability: str = "unspecified"
    durability_reason: str = ""


@dataclass(frozen=True)
class TensorMetadata:
    """Input or output of a model.

    datatype: name on the wire, for example "FP32".
    shape: dim 0 is the batch; -1 means any size.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata of a model.

    versions: served versions.
    origin: of a version that a trainer published: "trainer", "step", "sequence", "created",
        "checkpoint", which is empty if none holds the same state, and "durability" (see
        `ModelVersion`). Empty for a version from the repository.
    """

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    origin: dict[str, str]


@dataclass(frozen=True)
class Device:
    """Device slot: a worker thread and its device.

    name: for example "cpu:0" or "cuda:1"; with several workers on one GPU "cuda:0/0", "cuda:0/1".
    kind: "cpu" or "cuda".
    hardware: product name of the GPU; empty for CPU slots.
    threads: intra-op threads (CPU).
    busy_seconds: busy seconds by phase ("forward", "backward", ...) since the server started.
    samples: rows of all forward passes, including training.
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
    """Converts an inference.ModelMetadataResponse and an inference.ModelConfig."""

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


def durability_name(proto: Any) -> str:
    """Returns the state of the files of a PublishResponse or ModelVersion, for example "pending"."""
    names = proto.DESCRIPTOR.fields_by_name["durability"].enum_type.values_by_number
    return str(names[proto.durability].name).removeprefix("DURABILITY_").lower()


def model_versions(proto: Any) -> list[ModelVersion]:
    """Converts a braid.v1.ListVersionsResponse."""
    return [
        ModelVersion(
            model=each.model,
            version=each.version,
            origin=type(each).Origin.Name(each.origin).removeprefix("ORIGIN_").lower(),
            trainer=each.trainer,
            step=each.step,
            state=type(each).State.Name(each.state).removeprefix("STATE_").lower(),
            reason=each.reason,
            serving=each.serving,
            pinned=each.pinned,
            labels=tuple(each.labels),
            created=datetime.fromtimestamp(each.created, timezone.utc) if each.created else None,
            durability=durability_name(each),
            durability_reason=each.durability_reason,
        )
        for each in proto.versions
    ]


def devices(proto: Any) -> list[Device]:
    """Converts a braid.v1.ListDevicesResponse."""
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
