"""Conversion of losses and optimizers between PyTorch's names and the protocol."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

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


_REDUCTIONS = {"mean": _Loss.REDUCTION_MEAN, "sum": _Loss.REDUCTION_SUM}


def _put_pos_weight(message: Any, key: str, value: Any) -> None:
    nested = value.tolist() if hasattr(value, "tolist") else value
    try:
        shape = np.shape(nested)
    except ValueError:
        raise ValueError(f"{key}: {value!r} (expected rows of the same length)") from None
    if len(shape) < 2:
        message.pos_weight.extend(_fields.as_numbers(key, nested))
        return
    flat = np.array(nested, dtype=object).flat
    message.pos_weight.extend(_fields.as_number(key, each) for each in flat)
    message.pos_weight_shape.extend(shape)


def _get_pos_weight(present: Mapping[str, Any]) -> Any:
    if "pos_weight" not in present:
        return None
    numbers = np.array(present["pos_weight"])
    return numbers.reshape(present.get("pos_weight_shape", [-1])).tolist()


_EVERY_LOSS: Table = {
    "output": _fields.text("output"),
    "target": _fields.text("target"),
    "reduction": _fields.choice("reduction", _REDUCTIONS),
    # PyTorch has no name for it; its "weight" means class weights.
    "factor": number("weight"),
}
# Fields of every loss that takes several outputs.
_SEVERAL: Table = {
    "outputs": _fields.texts("outputs"),
    **{key: field for key, field in _EVERY_LOSS.items() if key != "output"},
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
    "bce_with_logits": {**_EVERY_LOSS, "pos_weight": Field(_put_pos_weight, _get_pos_weight)},
    "kl_div": {
        **_EVERY_LOSS,
        "log_target": flag("log_target"),
        "reduction": _fields.choice(
            "reduction", {**_REDUCTIONS, "batchmean": _Loss.REDUCTION_BATCHMEAN}
        ),
    },
    "poisson_nll": {
        **_EVERY_LOSS, "log_input": flag("log_input"), "full": flag("full"), "eps": number("eps"),
    },
    "gaussian_nll": {**_SEVERAL, "full": flag("full"), "eps": number("eps")},
    "focal": {**_EVERY_LOSS, **_CLASSES, "gamma": number("gamma")},
    "sigmoid_focal": {**_EVERY_LOSS, "alpha": number("alpha"), "gamma": number("gamma")},
    "dice": {
        **_EVERY_LOSS,
        "ignore_index": _fields.integer("ignore_index"),
        "smooth": number("smooth"),
    },
    "cosine_embedding": {**_SEVERAL, "margin": number("margin")},
    "triplet_margin": {
        **{key: field for key, field in _SEVERAL.items() if key != "target"},
        **{key: number(key) for key in ("margin", "p", "eps")},
        "swap": flag("swap"),
    },
    "ctc": {
        **_EVERY_LOSS,
        "target_lengths": _fields.text("target_lengths"),
        "input_lengths": _fields.text("input_lengths"),
        "blank": _fields.integer("blank"),
        "zero_infinity": flag("zero_infinity"),
    },
    # The server does not return it.
    "module": {**_EVERY_LOSS, "module": Field(_put_module, lambda present: None)},
}


def _put_betas(message: Any, key: str, value: Any) -> None:
    try:
        beta1, beta2 = value
    except (TypeError, ValueError):
        raise ValueError(f"{key}: {value!r} (expected two numbers, such as (0.9, 0.999))") from None
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
    """Converts one or several losses to a list of braid.v1.Loss.

    Raises ValueError if the mode requires a loss, or does not allow one.
    """
    if loss_mode == "client":
        if loss:
            raise ValueError("loss: not allowed with loss_mode 'client' (the client computes it)")
        return []
    if loss is None and loss_mode != "model":
        raise ValueError("loss: missing (required except for loss_mode 'model' and 'client')")
    if isinstance(loss, Sequence) and not isinstance(loss, str):
        return [loss_to_proto(each, loss_mode) for each in loss]
    return [loss_to_proto({} if loss is None else loss, loss_mode)]


def loss_to_proto(loss: LossLike, loss_mode: str = "central") -> Any:
    """Converts a name, a dict with "name" and parameters, or a ScriptModule to a braid.v1.Loss.

    Raises ValueError for an unknown name, key or reduction.
    """
    if loss_mode == "model":
        proto = _Loss()
        _fields.write(proto, _as_spec(loss), _EVERY_LOSS, "loss with loss_mode 'model'")
        return proto
    if _is_script(loss):
        loss = {"name": "module", "module": loss}
    name, parameters = split_name(loss, "loss")
    _fields.check_known(name, _LOSSES, "loss: unknown name")
    proto = _Loss(name=name)
    _fields.write(proto, parameters, _LOSSES[name], f"loss {name!r}")
    if name == "module" and not proto.module:
        raise ValueError('loss "module": no "module" (expected a torch.jit.ScriptModule or bytes)')
    return proto


def optimizer_to_proto(optimizer: str | Spec) -> Any:
    """Converts a name, or a dict with "name" and parameters, to a braid.v1.Optimizer.

    Raises ValueError for an unknown name or key.
    """
    name, parameters = split_name(optimizer, "optimizer")
    _fields.check_known(name, _OPTIMIZERS, "optimizer: unknown name")
    field, table = _OPTIMIZERS[name]
    proto = _Optimizer()
    # Selects the optimizer even if all parameters have defaults.
    getattr(proto, field).SetInParent()
    _fields.write(getattr(proto, field), parameters, table, f"optimizer {name!r}")
    return proto


def loss_from_proto(proto: Any) -> dict[str, Any]:
    """Returns the dict for which `loss_to_proto` returns `proto`, without defaults."""
    if not proto.name:
        return _fields.read(proto, _EVERY_LOSS)
    return {"name": proto.name, **_fields.read(proto, _LOSSES.get(proto.name, _EVERY_LOSS))}


def target_names(loss: Spec) -> list[str]:
    """Returns the names of the targets of a loss, as the server returns it."""
    if loss.get("name") == "triplet_margin":
        return []
    lengths = [loss[key] for key in ("target_lengths", "input_lengths") if key in loss]
    return [loss.get("target", "target"), *lengths]


def optimizer_from_proto(proto: Any) -> dict[str, Any]:
    """Returns the dict for which `optimizer_to_proto` returns `proto`, without defaults."""
    chosen = proto.WhichOneof("kind")
    for name, (field, table) in _OPTIMIZERS.items():
        if field == chosen:
            return {"name": name, **_fields.read(getattr(proto, field), table)}
    raise ValueError(f"optimizer: {chosen!r} from the server is unknown to this version of braid")


def split_name(spec: Any, what: str) -> tuple[str, dict[str, Any]]:
    """Splits a name, or a dict with "name", into the name and the parameters."""
    if isinstance(spec, str):
        return spec, {}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise ValueError(f'{what}: {spec!r} (expected a name or a dict with a "name")')
    parameters = dict(spec)
    return parameters.pop("name"), parameters


def _as_spec(loss: Any) -> Spec:
    if not isinstance(loss, Mapping):
        raise ValueError(
            f'loss: {loss!r} (expected a dict such as {{"output": "loss"}} for loss_mode "model")'
        )
    return loss


def _is_script(value: Any) -> bool:
    torch = sys.modules.get("torch")  # Not imported here: without torch, there are no scripts.
    return torch is not None and isinstance(value, torch.jit.ScriptModule)


def _script_bytes(module: Any) -> bytes:
    if not _is_script(module):
        raise ValueError(
            f"module: a {type(module).__name__} (expected a torch.jit.ScriptModule, from "
            "torch.jit.script, or the bytes of its file)"
        )
    buffer = io.BytesIO()
    sys.modules["torch"].jit.save(module, buffer)
    return buffer.getvalue()
