"""Requests of a trainer's operations, without trainer name and sequence number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from braid import _protocol, _tensors, _wire
from braid._protocol import TRAINING
from braid._tensors import TensorLike

Tensors = Mapping[str, TensorLike]

_HyperParameters = _protocol.message("braid.v1.HyperParameters")
_ForwardRequest = TRAINING["Forward"].request
_MODES = {"train": _ForwardRequest.MODE_TRAIN, "eval": _ForwardRequest.MODE_EVAL}
_StreamRequest = TRAINING["Stream"].request

# Method -> its field of StreamRequest.
STREAM_FIELDS = {
    "Step": "step",
    "ForwardBackward": "forward_backward",
    "OptimStep": "optim_step",
    "Forward": "forward",
    "Backward": "backward",
    "Publish": "publish",
}


def batch(inputs: Tensors, targets: Tensors | None) -> Mapping[str, Tensors]:
    """Returns the tensors of a request with a batch, for `serialize`."""
    return {"inputs": inputs, "targets": {} if targets is None else targets}


def serialize(request: Any, tensors: Mapping[str, Tensors]) -> bytes:
    """Serializes `request` with tensors, by field and name.

    Raises TypeError or ValueError for arrays that cannot be sent.
    """
    return b"".join(_parts(request, tensors))


def serialize_framed(
    method: str, request: Any, tensors: Mapping[str, Tensors]
) -> tuple[bytes, int]:
    """Serializes a StreamRequest that contains the request. Returns it and the request's offset.

    The request's bytes equal those of `serialize`, because a replay may use either form.
    """
    frame = _frame(method, _parts(request, tensors))
    return b"".join(frame), len(frame[0]) + len(frame[1])


def frame(method: str, payload: bytes) -> bytes:
    """Wraps the serialized request `payload` of `method` in a serialized StreamRequest."""
    return b"".join(_frame(method, [payload]))


def _frame(method: str, parts: _wire.Parts) -> _wire.Parts:
    number = _StreamRequest.DESCRIPTOR.fields_by_name[STREAM_FIELDS[method]].number
    return _wire.bytes_field(number, parts)


def _parts(request: Any, tensors: Mapping[str, Tensors]) -> _wire.Parts:
    wired = {field: _tensors.to_wire(named, field) for field, named in tensors.items()}
    _tensors.check_fits(tensor for named in wired.values() for tensor in named)
    parts = [request.SerializeToString()]
    for field, named in wired.items():
        number = request.DESCRIPTOR.fields_by_name[field].number
        for tensor in named:
            parts += _wire.tensor_field(number, tensor)
    return parts


def _batch_name(batch_id: str | None) -> str:
    if batch_id is not None and not isinstance(batch_id, str):
        raise TypeError(f"batch_id: {batch_id!r} (expected a string)")
    return batch_id or ""


def step(
    lr: float | None,
    weight_decay: float | None,
    momentum: float | None,
    group_lr: Sequence[float] | None,
    metric: float | None,
    report_split: bool,
    batch_id: str | None,
) -> Any:
    """Returns a Step request without its batch."""
    request = TRAINING["Step"].request(report_split=report_split, batch_id=_batch_name(batch_id))
    _set_hyper_parameters(request, lr, weight_decay, momentum, group_lr, metric)
    return request


def forward_backward(report_split: bool, batch_id: str | None) -> Any:
    """Returns a ForwardBackward request without its batch."""
    return TRAINING["ForwardBackward"].request(
        report_split=report_split, batch_id=_batch_name(batch_id)
    )


def optim_step(
    lr: float | None,
    weight_decay: float | None,
    momentum: float | None,
    group_lr: Sequence[float] | None,
    metric: float | None,
) -> Any:
    request = TRAINING["OptimStep"].request()
    _set_hyper_parameters(request, lr, weight_decay, momentum, group_lr, metric)
    return request


def forward(mode: str, report_split: bool, keep_graph: bool, batch_id: str | None) -> Any:
    """Returns a Forward request without its batch. Raises ValueError for an unknown mode."""
    if mode not in _MODES:
        raise ValueError(f"mode: {mode!r} (expected one of {', '.join(_MODES)})")
    return _ForwardRequest(
        mode=_MODES[mode],
        report_split=report_split,
        keep_graph=keep_graph,
        batch_id=_batch_name(batch_id),
    )


def backward() -> Any:
    """Returns a Backward request without its gradients."""
    return TRAINING["Backward"].request()


def publish(model: str | None, wait_durable: bool) -> Any:
    return TRAINING["Publish"].request(target_model=model or "", wait_durable=wait_durable)


def _set_hyper_parameters(
    request: Any,
    lr: float | None,
    weight_decay: float | None,
    momentum: float | None,
    group_lr: Sequence[float] | None,
    metric: float | None,
) -> None:
    values = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "metric": metric}
    given: dict[str, Any] = {
        name: float(value) for name, value in values.items() if value is not None
    }
    if group_lr is not None:
        given["group_lr"] = [float(value) for value in group_lr]
    if given:
        request.hyper_parameters.CopyFrom(_HyperParameters(**given))
