"""The requests of a trainer's operations, but for its name and their numbers."""

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
    """The tensors of a request that takes a batch, for `serialize`."""
    return {"inputs": inputs, "targets": {} if targets is None else targets}


def serialize(request: Any, tensors: Mapping[str, Tensors]) -> bytes:
    """`request` with `tensors` added: for each of its fields of braid.v1.Tensor those by name.

    TypeError or ValueError for arrays that cannot be sent.
    """
    return b"".join(_parts(request, tensors))


def serialize_framed(method: str, request: Any, tensors: Mapping[str, Tensors]) -> tuple[bytes, int]:
    """The StreamRequest that holds that request of `method`, and where in it the request begins.

    The request's own bytes are the same, as they have to be if it is sent again in another way.
    """
    frame = _frame(method, _parts(request, tensors))
    return b"".join(frame), len(frame[0]) + len(frame[1])


def frame(method: str, payload: bytes) -> bytes:
    """The serialized StreamRequest that holds the serialized request `payload` of `method`."""
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


def step(
    lr: float | None,
    weight_decay: float | None,
    momentum: float | None,
    group_lr: Sequence[float] | None,
    metric: float | None,
    report_split: bool,
) -> Any:
    """A Step without its batch."""
    request = TRAINING["Step"].request(report_split=report_split)
    _set_hyper_parameters(request, lr, weight_decay, momentum, group_lr, metric)
    return request


def forward_backward(report_split: bool) -> Any:
    """A ForwardBackward without its batch."""
    return TRAINING["ForwardBackward"].request(report_split=report_split)


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


def forward(mode: str, report_split: bool, keep_graph: bool) -> Any:
    """A Forward without its batch. ValueError for an unknown mode."""
    if mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(_MODES)}")
    return _ForwardRequest(mode=_MODES[mode], report_split=report_split, keep_graph=keep_graph)


def backward() -> Any:
    """A Backward without its gradients."""
    return TRAINING["Backward"].request()


def publish() -> Any:
    return TRAINING["Publish"].request()


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
