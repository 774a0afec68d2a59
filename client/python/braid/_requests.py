"""The requests of a trainer's operations, but for its name and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from braid import _protocol, _tensors
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


def set_batch(request: Any, inputs: Tensors, targets: Tensors | None) -> None:
    """Puts a batch into a request that has `inputs` and `targets`.

    TypeError or ValueError for arrays that cannot be sent.
    """
    set_tensors(((request.inputs, inputs, "inputs"), (request.targets, targets or {}, "targets")))


def set_tensors(parts: Iterable[tuple[Any, Tensors, str]]) -> None:
    """Puts into each field the tensors by name, which the caller knows as the third says."""
    wired = [(field, _tensors.to_wire(tensors, name)) for field, tensors, name in parts]
    _tensors.check_fits(tensor for _, tensors in wired for tensor in tensors)
    for field, tensors in wired:
        for tensor in tensors:
            field.add(
                name=tensor.name, datatype=tensor.datatype, shape=tensor.shape, data=tensor.data()
            )


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


def forward(
    inputs: Tensors, targets: Tensors | None, mode: str, report_split: bool, keep_graph: bool
) -> Any:
    """ValueError for an unknown mode."""
    if mode not in _MODES:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(_MODES)}")
    request = _ForwardRequest(
        mode=_MODES[mode], report_split=report_split, keep_graph=keep_graph
    )
    set_batch(request, inputs, targets)
    return request


def backward(output_gradients: Tensors) -> Any:
    request = TRAINING["Backward"].request()
    set_tensors([(request.output_gradients, output_gradients, "output_gradients")])
    return request


def publish() -> Any:
    return TRAINING["Publish"].request()


def stream_request(method: str, payload: bytes) -> bytes:
    """The serialized StreamRequest that holds the serialized request `payload` of `method`.

    The request's own bytes stay what they are, as they have to if it is sent again in another way.
    """
    number = _StreamRequest.DESCRIPTOR.fields_by_name[STREAM_FIELDS[method]].number
    return b"".join((_varint(number << 3 | 2), _varint(len(payload)), payload))


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


def _varint(value: int) -> bytes:
    """protobuf's: seven bits a byte, the lowest first, the top bit set on all but the last."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
