"""Losses and optimizers between PyTorch's words for them and the protocol's."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from braid import _fields, _protocol
from braid._fields import Field, Table, flag, number

if TYPE_CHECKING:
    import torch

Spec = Mapping[str, Any]
LossLike = Union[str, Spec, "torch.jit.ScriptModule"]

_Loss = _protocol.message("braid.v1.Loss")
_Optimizer = _protocol.message("braid.v1.Optimizer")


def _put_module(message: Any, key: str, value: Any) -> None:
    message.module = value if isinstance(value, bytes) else _script_bytes(value)


_EVERY_LOSS: Table = {
    "output": _fields.text("output"),
    "target": _fields.text("target"),
    "reduction": _fields.choice(
        "reduction", {"mean": _Loss.REDUCTION_MEAN, "sum": _Loss.REDUCTION_SUM}
    ),
    # PyTorch has no word for it, and its own "weight" is that of classes.
    "factor": number("weight"),
}
_CLASSES: Table = {
    "weight": _fields.numbers("class_weights"),
    "ignore_index": _fields.integer("ignore_index"),
}
_LOSSES: Mapping[str, Table] = {
    "cross_entropy": {**_EVERY_LOSS, **_CLASSES, "label_smoothing": number("label_smoothing")},
    "nll": {**_EVERY_LOSS, **_CLASSES},
    "mse": _EVERY_LOSS,
    "l1": _EVERY_LOSS,
    "smooth_l1": {**_EVERY_LOSS, "beta": number("beta")},
    "huber": {**_EVERY_LOSS, "delta": number("delta")},
    "bce_with_logits": {**_EVERY_LOSS, "pos_weight": _fields.numbers("pos_weight")},
    "kl_div": {**_EVERY_LOSS, "log_target": flag("log_target")},
    # The server does not send it back.
    "module": {**_EVERY_LOSS, "module": Field(_put_module, lambda present: None)},
}


def _put_betas(message: Any, key: str, value: Any) -> None:
    try:
        beta1, beta2 = value
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be two numbers, as in (0.9, 0.999)") from None
    message.beta1 = _fields.as_number(key, beta1)
    message.beta2 = _fields.as_number(key, beta2)


def _get_betas(present: Mapping[str, Any]) -> tuple[float, float] | None:
    if "beta1" not in present and "beta2" not in present:
        return None
    return present.get("beta1", 0.9), present.get("beta2", 0.999)


def _numbers_of(*names: str) -> Table:
    return {name: number(name) for name in names}


_ADAM: Table = {
    "lr": number("lr"),
    "betas": Field(_put_betas, _get_betas),
    **_numbers_of("eps", "weight_decay"),
    "amsgrad": flag("amsgrad"),
}
# PyTorch's name -> the protocol's field, PyTorch's parameters.
_OPTIMIZERS: Mapping[str, tuple[str, Table]] = {
    "SGD": (
        "sgd",
        {
            **_numbers_of("lr", "momentum", "dampening", "weight_decay"),
            "nesterov": flag("nesterov"),
        },
    ),
    "Adam": ("adam", _ADAM),
    "AdamW": ("adamw", _ADAM),
    "RMSprop": (
        "rmsprop",
        {
            **_numbers_of("lr", "alpha", "eps", "weight_decay", "momentum"),
            "centered": flag("centered"),
        },
    ),
    "Adagrad": (
        "adagrad",
        _numbers_of("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
    ),
}


def losses_to_proto(loss: LossLike | Sequence[LossLike] | None, loss_mode: str) -> list[Any]:
    """The braid.v1.Losses that `loss` says, one or several.

    ValueError for a loss that the mode needs and has not got, or has got and does not take.
    """
    if loss_mode == "client":
        if loss:
            raise ValueError("loss_mode 'client' takes no loss: the client computes it")
        return []
    if loss is None and loss_mode != "model":
        raise ValueError("loss is missing; only loss_mode 'model' and 'client' go without")
    if isinstance(loss, Sequence) and not isinstance(loss, str):
        return [loss_to_proto(each, loss_mode) for each in loss]
    return [loss_to_proto({} if loss is None else loss, loss_mode)]


def loss_to_proto(loss: LossLike, loss_mode: str = "central") -> Any:
    """The braid.v1.Loss of a name, a dict with "name" and parameters, or a ScriptModule.

    ValueError, listing what is known, for an unknown name, key or reduction.
    """
    if loss_mode == "model":
        proto = _Loss()
        _fields.write(proto, _as_spec(loss), _EVERY_LOSS, "loss of loss_mode 'model'")
        return proto
    if _is_script(loss):
        loss = {"name": "module", "module": loss}
    name, parameters = split_name(loss, "loss")
    _fields.check_known(name, _LOSSES, "loss")
    proto = _Loss(name=name)
    _fields.write(proto, parameters, _LOSSES[name], f"loss {name!r}")
    if name == "module" and not proto.module:
        raise ValueError('loss "module" needs its "module", a torch.jit.ScriptModule or bytes')
    return proto


def optimizer_to_proto(optimizer: str | Spec) -> Any:
    """The braid.v1.Optimizer that `optimizer` says: a name, or a dict with "name" and parameters.

    ValueError, listing what is known, for an unknown name or key.
    """
    name, parameters = split_name(optimizer, "optimizer")
    _fields.check_known(name, _OPTIMIZERS, "optimizer")
    field, table = _OPTIMIZERS[name]
    proto = _Optimizer()
    # SetInParent: an optimizer with every default is chosen too.
    getattr(proto, field).SetInParent()
    _fields.write(getattr(proto, field), parameters, table, f"optimizer {name!r}")
    return proto


def loss_from_proto(proto: Any) -> dict[str, Any]:
    """The dict for which `loss_to_proto` gives `proto`; absent: the default."""
    if not proto.name:
        return _fields.read(proto, _EVERY_LOSS)
    return {"name": proto.name, **_fields.read(proto, _LOSSES.get(proto.name, _EVERY_LOSS))}


def optimizer_from_proto(proto: Any) -> dict[str, Any]:
    """The dict for which `optimizer_to_proto` gives `proto`; absent: the default."""
    chosen = proto.WhichOneof("kind")
    for name, (field, table) in _OPTIMIZERS.items():
        if field == chosen:
            return {"name": name, **_fields.read(getattr(proto, field), table)}
    raise ValueError(f"the server's optimizer {chosen!r} is not known to this version of braid")


def split_name(spec: Any, what: str) -> tuple[str, dict[str, Any]]:
    """The name, and the parameters, that a name or a dict with "name" says."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ValueError(f'{what} must be a name or a dict with a "name"; got {spec!r}')
    parameters = dict(spec)
    return parameters.pop("name"), parameters


def _as_spec(loss: Any) -> Spec:
    if not isinstance(loss, Mapping):
        raise ValueError(
            f'loss_mode "model" takes a dict such as {{"output": "loss"}}; got {loss!r}'
        )
    return loss


def _is_script(value: Any) -> bool:
    torch = sys.modules.get("torch")  # Never imported here: without it nothing can be torch's.
    return torch is not None and isinstance(value, torch.jit.ScriptModule)


def _script_bytes(module: Any) -> bytes:
    if not _is_script(module):
        raise ValueError(
            "module must be a torch.jit.ScriptModule, as torch.jit.script makes one, or the bytes "
            f"of its file; got {type(module).__name__}"
        )
    buffer = io.BytesIO()
    sys.modules["torch"].jit.save(module, buffer)
    return buffer.getvalue()
