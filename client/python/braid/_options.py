"""Conversion between arguments of `Client.create_trainer` and braid.v1.TrainingOptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braid import _fields, _protocol, _specs
from braid._fields import Field, Table, choice, flag, integer, number, text, within

_TrainingOptions = _protocol.message("braid.v1.TrainingOptions")

_LOSS_MODES = {"central": 1, "per_replica": 2, "model": 3, "client": 4}
_PRECISIONS = {"bfloat16": 2, "float16": 3}
_NON_FINITE = {"fail": 1, "skip": 2}
_JOURNALS = {"operations": 1, "none": 2}
_SYNCS = {"auto": 1, "reduce_broadcast": 2, "all_reduce": 3}

_PARAMETER_GROUP: Table = {
    "pattern": text("pattern"),
    "frozen": flag("frozen"),
    "lr": number("lr"),
    "weight_decay": number("weight_decay"),
    "momentum": number("momentum"),
}
_GRAD_SCALER: Table = {
    "init_scale": number("init_scale"),
    "growth_factor": number("growth_factor"),
    "backoff_factor": number("backoff_factor"),
    "growth_interval": integer("growth_interval"),
}
_STAGE: Table = {"path": text("path"), "devices": _fields.texts("devices")}
_WARMUP: Table = {"steps": integer("steps"), "start_factor": number("start_factor")}

# PyTorch's name -> the protocol's field, PyTorch's parameters.
_SCHEDULES: Mapping[str, tuple[str, Table]] = {
    "StepLR": ("step", {"step_size": integer("step_size"), "gamma": number("gamma")}),
    "MultiStepLR": (
        "multi_step",
        {"milestones": _fields.integers("milestones"), "gamma": number("gamma")},
    ),
    "ExponentialLR": ("exponential", {"gamma": number("gamma")}),
    "CosineAnnealingLR": ("cosine", {"T_max": integer("t_max"), "eta_min": number("eta_min")}),
    "OneCycleLR": (
        "one_cycle",
        {
            "max_lr": number("max_lr"),
            "total_steps": integer("total_steps"),
            "pct_start": number("pct_start"),
            "anneal_strategy": choice("linear", {"cos": False, "linear": True}),
            "cycle_momentum": flag("cycle_momentum"),
            "base_momentum": number("base_momentum"),
            "max_momentum": number("max_momentum"),
            "div_factor": number("div_factor"),
            "final_div_factor": number("final_div_factor"),
            "three_phase": flag("three_phase"),
        },
    ),
    "ReduceLROnPlateau": (
        "plateau",
        {
            "mode": choice("maximize", {"min": False, "max": True}),
            "factor": number("factor"),
            "patience": integer("patience"),
            "threshold": number("threshold"),
            "threshold_mode": choice("absolute_threshold", {"rel": False, "abs": True}),
            "cooldown": integer("cooldown"),
            "min_lr": number("min_lr"),
            "eps": number("eps"),
            "interval": integer("interval"),
        },
    ),
}


def _put_schedule(message: Any, key: str, value: Any) -> None:
    parameters = dict(value) if isinstance(value, Mapping) else value
    schedule = message.schedule
    if isinstance(parameters, dict) and parameters.get("warmup") is not None:
        warmup = {"warmup": parameters.pop("warmup")}
        _fields.write(schedule, warmup, {"warmup": _fields.submessage("warmup", _WARMUP)}, key)
        if not parameters:
            return  # Constant after the warmup.
    name, parameters = _specs.split_name(parameters, key)
    _fields.check_known(name, _SCHEDULES, f"{key}: unknown name")
    field, table = _SCHEDULES[name]
    getattr(schedule, field).SetInParent()
    _fields.write(getattr(schedule, field), parameters, table, f"{key} {name!r}")


def _get_schedule(present: Mapping[str, Any]) -> dict[str, Any] | None:
    if "schedule" not in present:
        return None
    schedule = present["schedule"]
    value: dict[str, Any] = {}
    for name, (field, table) in _SCHEDULES.items():
        if schedule.WhichOneof("kind") == field:
            value = {"name": name, **_fields.read(getattr(schedule, field), table)}
    if schedule.HasField("warmup"):
        value["warmup"] = _fields.read(schedule.warmup, _WARMUP)
    return value or None


_CLIP_NORM: Table = {"max_norm": number("max_norm"), "norm_type": number("norm_type")}


def _put_clip_norm(message: Any, key: str, value: Any) -> None:
    values = value if isinstance(value, Mapping) else {"max_norm": _fields.as_number(key, value)}
    _fields.write(message.clipping, values, _CLIP_NORM, key)


def _get_clip_norm(present: Mapping[str, Any]) -> float | dict[str, float] | None:
    values = _fields.read(present["clipping"], _CLIP_NORM) if "clipping" in present else {}
    return values["max_norm"] if set(values) == {"max_norm"} else values or None


OPTIONS: Table = {
    "loss_mode": choice("loss_mode", _LOSS_MODES),
    "unweighted_mean": flag("unweighted_mean"),
    "parameter_groups": _fields.submessages("parameter_groups", _PARAMETER_GROUP),
    "schedule": Field(_put_schedule, _get_schedule),
    "clip_grad_norm": Field(_put_clip_norm, _get_clip_norm),
    "clip_grad_value": within("clipping", number("max_value")),
    "precision": choice("precision", _PRECISIONS),
    "grad_scaler": _fields.submessage("grad_scaler", _GRAD_SCALER),
    "non_finite": choice("non_finite", _NON_FINITE),
    "sync": choice("sync", _SYNCS),
    "sync_batch_norm": flag("sync_batch_norm"),
    "eval_modules": _fields.texts("eval_modules"),
    "seed": integer("seed"),
    "stages": _fields.submessages("stages", _STAGE),
    "output_device": text("output_device"),
    "micro_batch": integer("micro_batch"),
    "checkpoint_every": within("checkpoints", integer("every_operations")),
    "checkpoint_every_seconds": within("checkpoints", number("every_seconds")),
    "checkpoint_keep": within("checkpoints", integer("keep")),
    "idle_timeout": number("idle_timeout_seconds"),
    "journal": choice("journal", _JOURNALS),
    "journal_history_bytes": within("journal_history", integer("bytes")),
    "journal_history_days": within("journal_history", _fields.days("seconds")),
}


def to_proto(options: Mapping[str, Any]) -> Any:
    """Returns the braid.v1.TrainingOptions for arguments of `create_trainer`. Skips None.

    Raises ValueError, with the argument's name, for an unknown name or an invalid value.
    """
    proto = _TrainingOptions()
    _fields.write(proto, options, OPTIONS, "create_trainer")
    return proto


def from_proto(proto: Any) -> dict[str, Any]:
    """Returns the arguments for which `to_proto` returns `proto`, without defaults."""
    return _fields.read(proto, OPTIONS)
