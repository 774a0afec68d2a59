"""Losses and optimizers between PyTorch's words for them and the protocol's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from braid import _protocol

Spec = Mapping[str, Any]

_Loss = _protocol.message("braid.v1.Loss")
_Optimizer = _protocol.message("braid.v1.Optimizer")

_REDUCTIONS = {"mean": _Loss.REDUCTION_MEAN, "sum": _Loss.REDUCTION_SUM}
_EVERY_LOSS = ("output", "target", "reduction")
_LOSSES = {
    "cross_entropy": (*_EVERY_LOSS, "ignore_index", "label_smoothing"),
    "mse": _EVERY_LOSS,
}
# PyTorch's name -> (the protocol's field, PyTorch's parameters).
_OPTIMIZERS = {
    "SGD": ("sgd", ("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    "AdamW": ("adamw", ("lr", "betas", "eps", "weight_decay")),
}


def loss_to_proto(loss: str | Spec) -> Any:
    """The braid.v1.Loss that `loss` says: a name, or a dict with "name" and parameters.

    ValueError, listing what is known, for an unknown name, key or reduction.
    """
    name, parameters = _split(loss, "loss")
    _check_known(name, _LOSSES, "loss")
    _check_known_keys(parameters, _LOSSES[name], f"loss {name!r}")
    if "reduction" in parameters:
        _check_known(parameters["reduction"], _REDUCTIONS, "reduction")
        parameters["reduction"] = _REDUCTIONS[parameters["reduction"]]
    if "label_smoothing" in parameters:
        parameters["label_smoothing"] = _number("label_smoothing", parameters["label_smoothing"])
    return _Loss(name=name, **parameters)


def optimizer_to_proto(optimizer: str | Spec) -> Any:
    """The braid.v1.Optimizer that `optimizer` says: a name, or a dict with "name" and parameters.

    ValueError, listing what is known, for an unknown name or key.
    """
    name, parameters = _split(optimizer, "optimizer")
    _check_known(name, _OPTIMIZERS, "optimizer")
    field, known = _OPTIMIZERS[name]
    _check_known_keys(parameters, known, f"optimizer {name!r}")
    if "betas" in parameters:
        try:
            parameters["beta1"], parameters["beta2"] = parameters.pop("betas")
        except (TypeError, ValueError):
            raise ValueError("betas must be two numbers, as in (0.9, 0.999)") from None
    proto = _Optimizer()
    # SetInParent: an optimizer with every default is chosen too.
    getattr(proto, field).SetInParent()
    for key, value in parameters.items():
        setattr(getattr(proto, field), key, value if key == "nesterov" else _number(key, value))
    return proto


def loss_from_proto(proto: Any) -> dict[str, Any]:
    """The dict for which `loss_to_proto` gives `proto`; absent: the default."""
    spec: dict[str, Any] = {"name": proto.name}
    for field, value in proto.ListFields():
        spec[field.name] = value
    for word, number in _REDUCTIONS.items():
        if spec.get("reduction") == number:
            spec["reduction"] = word
    return spec


def optimizer_from_proto(proto: Any) -> dict[str, Any]:
    """The dict for which `optimizer_to_proto` gives `proto`; absent: the default."""
    chosen = proto.WhichOneof("kind")
    for name, (field, _) in _OPTIMIZERS.items():
        if field == chosen:
            kind = getattr(proto, field)
            parameters = {f.name: value for f, value in kind.ListFields()}
            if "beta1" in parameters or "beta2" in parameters:
                parameters["betas"] = (
                    parameters.pop("beta1", 0.9), parameters.pop("beta2", 0.999)
                )
            return {"name": name, **parameters}
    raise ValueError(f"the server's optimizer {chosen!r} is not known to this version of braid")


def _split(spec: str | Spec, what: str) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ValueError(f'{what} must be a name or a dict with a "name"; got {spec!r}')
    parameters = dict(spec)
    return parameters.pop("name"), parameters


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a number; got {value!r}") from None


def _check_known(name: Any, known: Iterable[str], what: str) -> None:
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")


def _check_known_keys(keys: Iterable[str], known: Iterable[str], what: str) -> None:
    for key in keys:
        _check_known(key, known, f"parameter of {what}:")
