"""Conversion of replies of the training service to `braid.results`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import numpy as np

from braid import _options, _specs, _tensors
from braid.errors import DataLoss, Internal
from braid.results import (
    Checkpoint,
    Chunk,
    DeviceMemory,
    EvaluationResult,
    ForwardResult,
    OperationResult,
    RecordedOperation,
    ReplayDifference,
    ReplayReport,
    StepResult,
    TrainerInfo,
    durability_name,
)


def operation_result(reply: Any) -> OperationResult:
    """Converts a reply with a status only."""
    return OperationResult(**_operation_fields(reply.status))


def step_result(reply: Any) -> StepResult:
    """Converts a reply with a loss."""
    return StepResult(loss=reply.loss, **_operation_fields(reply.status))


def forward_result(reply: Any) -> ForwardResult:
    return ForwardResult(
        outputs={t.name: _tensors.from_wire(t.datatype, t.shape, t.data) for t in reply.outputs},
        loss=reply.loss if reply.HasField("loss") else None,
        **_operation_fields(reply.status),
    )


def lost_result(kind: type[OperationResult], sequence: int, status: Any) -> OperationResult:
    """Creates the result of an operation whose reply was lost. status: of a later operation."""
    fields = _operation_fields(type(status)(
        applied_sequence=sequence, durable_sequence=status.durable_sequence, step=status.step
    ))
    fields["reply_lost"] = True
    if kind is StepResult:
        fields["loss"] = math.nan
    return kind(**fields)


def published_version(reply: Any, wait_durable: bool) -> int:
    """Returns the version. Raises DataLoss if the call waited for it and it was not written."""
    if wait_durable and durability_name(reply) in ("failed", "superseded"):
        raise DataLoss(
            f"version {reply.version} of model '{reply.model}' was published, but not written: "
            f"{reply.durability_reason}"
        )
    return int(reply.version)


def trainer_info(proto: Any) -> TrainerInfo:
    """Converts a braid.v1.Trainer."""
    return TrainerInfo(
        name=proto.name,
        model=proto.model,
        base_version=proto.base_version,
        losses=[_specs.loss_from_proto(loss) for loss in proto.losses],
        optimizer=_specs.optimizer_from_proto(proto.optimizer),
        options=_options.from_proto(proto.options),
        devices=tuple(proto.devices),
        step=proto.step,
        applied_sequence=proto.applied_sequence,
        durable_sequence=proto.durable_sequence,
        accumulated=proto.accumulated,
        skipped=proto.skipped,
        lr=proto.lr,
        lrs=_rates(proto.lrs),
        memory=[DeviceMemory(m.device, m.current_bytes, m.peak_bytes) for m in proto.memory],
        id=proto.id,
        last_operator=proto.last_operator,
        notes=tuple(proto.notes),
        on_disk=proto.on_disk,
    )


def checkpoint(proto: Any) -> Checkpoint:
    """Converts a braid.v1.Checkpoint."""
    return Checkpoint(
        name=proto.name,
        step=proto.step,
        sequence=proto.sequence,
        bytes=proto.bytes,
        created=datetime.fromtimestamp(proto.created, timezone.utc),
    )


def recorded_operations(replies: Iterable[Any]) -> list[RecordedOperation]:
    """Converts the messages of GetHistory."""
    return [_recorded_operation(proto) for reply in replies for proto in reply.operations]


def _recorded_operation(proto: Any) -> RecordedOperation:
    def optional(field: str) -> Any:
        return getattr(proto, field) if proto.HasField(field) else None

    return RecordedOperation(
        line=proto.line,
        sequence=proto.sequence,
        kind=proto.kind,
        time=datetime.fromtimestamp(proto.time, timezone.utc),
        batch_id=proto.batch_id,
        error=proto.error,
        step=optional("step"),
        loss=optional("loss"),
        gradient_norm=optional("gradient_norm"),
        lr=optional("lr"),
        skipped=proto.skipped,
        published=(proto.model, proto.version) if proto.version else None,
    )


def replay_report(reply: Any) -> ReplayReport:
    """Converts a braid.v1.ReplayTrainerResponse."""
    difference = None
    if reply.HasField("difference"):
        proto = reply.difference
        difference = ReplayDifference(
            sequence=proto.sequence,
            step=proto.step,
            batch_id=proto.batch_id,
            checkpoint=proto.checkpoint,
            recorded=proto.recorded,
            replayed=proto.replayed,
        )
    return ReplayReport(
        first_step=reply.first_step,
        last_step=reply.last_step,
        operations=reply.operations,
        checkpoints=reply.checkpoints,
        difference=difference,
        recorded_with=reply.recorded_with,
        replayed_with=reply.replayed_with,
    )


def evaluation_result(reply: Any) -> EvaluationResult:
    """Converts a braid.v1.EvaluateResponse. Raises Internal for a non-square confusion matrix."""
    confusion = None
    if reply.confusion:
        classes = math.isqrt(len(reply.confusion))
        if classes * classes != len(reply.confusion):
            raise Internal(
                f"confusion: {len(reply.confusion)} numbers from the server (expected a square)"
            )
        confusion = np.array(reply.confusion, np.int64).reshape(classes, classes)
    return EvaluationResult(
        loss=reply.loss if reply.HasField("loss") else None,
        rows=reply.rows,
        metrics=dict(sorted(reply.metrics.items())),
        confusion=confusion,
        step=reply.step,
    )


def _operation_fields(status: Any) -> dict[str, Any]:
    """Returns the fields of OperationResult from a braid.v1.OperationStatus."""
    return {
        "step": status.step,
        "sequence": status.applied_sequence,
        "durable_sequence": status.durable_sequence,
        "chunks": tuple(_chunk(chunk) for chunk in status.chunks),
        "replayed": status.replayed,
        "phases": {phase.name: phase.seconds for phase in status.phases},
        "skipped": status.skipped,
        "gradient_norm": status.gradient_norm if status.HasField("gradient_norm") else None,
        "lr": status.lr if status.HasField("lr") else None,
        "lrs": _rates(status.lrs),
        "reply_lost": False,
    }


def _rates(protos: Iterable[Any]) -> dict[str, float]:
    return {proto.group: proto.lr for proto in protos}


def _chunk(proto: Any) -> Chunk:
    return Chunk(
        device=proto.device,
        rows=proto.rows,
        stage=proto.stage,
        input_shapes=_shapes(proto.input_shapes),
        output_shapes=_shapes(proto.output_shapes),
    )


def _shapes(shapes: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(json.loads(shape)) for shape in shapes)
