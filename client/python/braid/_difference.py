"""Comparison of the arguments of `Client.create_trainer` with an existing trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from braid import _options, _specs
from braid.results import TrainerInfo

_ADAM = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
# Defaults of the server, which reports them as if they had been given. By the argument that contains
# them, and by the name in it. A parameter with the default 0, False or "" is not reported.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"lr": 1e-3},
    "Adam": _ADAM,
    "AdamW": {**_ADAM, "weight_decay": 1e-2},
    "RMSprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8},
    "Adagrad": {"lr": 1e-2, "eps": 1e-10},
    "losses": {
        "reduction": "mean",
        "target": "target",
        "factor": 1.0,
        "ignore_index": -100,
        "beta": 1.0,
        "delta": 1.0,
    },
    "warmup": {"start_factor": 1 / 3},
    "StepLR": {"gamma": 0.1},
    "MultiStepLR": {"gamma": 0.1},
    "OneCycleLR": {
        "pct_start": 0.3,
        "cycle_momentum": True,
        "base_momentum": 0.85,
        "max_momentum": 0.95,
        "div_factor": 25.0,
        "final_div_factor": 1e4,
        "anneal_strategy": "cos",
    },
    "ReduceLROnPlateau": {
        "interval": 1,
        "mode": "min",
        "factor": 0.1,
        "patience": 10,
        "threshold": 1e-4,
        "threshold_mode": "rel",
        "eps": 1e-8,
    },
    "clip_grad_norm": {"norm_type": 2.0},
    "grad_scaler": {
        "init_scale": 65536.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
    },
    "create_trainer": {
        "loss_mode": "central",
        "non_finite": "fail",
        "sync": "auto",
        "checkpoint_keep": 3,
    },
}

# Arguments that the server chooses if they are left out, and then reports.
_CHOSEN = ("version", "output", "stages", "devices", "output_device")


def difference(request: Any, info: TrainerInfo) -> str | None:
    """Returns the first argument in which a trainer differs from `request`, or None.

    request: a braid.v1.CreateTrainerRequest.
    Does not compare what the server chose because the request lacks it, nor the code of loss
    modules, which the server does not return.
    """
    asked = {
        "model": request.model,
        **({"version": request.version} if request.version else {}),
        "losses": [_specs.loss_from_proto(loss) for loss in request.losses],
        "optimizer": _specs.optimizer_from_proto(request.optimizer),
        **_options.from_proto(request.options),
    }
    if asked.get("precision") == "float16":
        asked.setdefault("grad_scaler", {})
    found = {
        "model": info.model,
        "version": info.base_version,
        "losses": info.losses,
        "optimizer": info.optimizer,
        **info.options,
    }
    return _first("", *(_with_defaults("create_trainer", each) for each in (asked, found)))


def _with_defaults(key: str, value: Any) -> Any:
    if key == "clip_grad_norm" and not isinstance(value, Mapping):
        value = {"max_norm": value}
    if isinstance(value, Mapping):
        named = _DEFAULTS.get(value.get("name", ""), {})
        given = {name: _with_defaults(name, each) for name, each in value.items()}
        return {**given, **_DEFAULTS.get(key, {}), **named, **given}  # In the order of `given`.
    if isinstance(value, (list, tuple)):
        return [_with_defaults(key, each) for each in value]
    return value


def _first(path: str, asked: Any, found: Any) -> str | None:
    """Returns the path of the first difference, with both values."""
    if isinstance(asked, Mapping) and isinstance(found, Mapping):
        inner = [
            (f"{path}.{name}" if path else name, asked.get(name), found.get(name))
            for name in dict.fromkeys([*asked, *found])
            if name in asked or name not in _CHOSEN
        ]
    elif isinstance(asked, list) and isinstance(found, list) and len(asked) == len(found):
        inner = [(f"{path}[{i}]", *pair) for i, pair in enumerate(zip(asked, found))]
    else:
        return None if _equal(asked, found) else f"{path}: {_text(found)} instead of {_text(asked)}"
    return next((each for each in (_first(*values) for values in inner) if each), None)


def _equal(asked: Any, found: Any) -> bool:
    if isinstance(asked, float) and isinstance(found, float):
        return math.isclose(asked, found)  # The server rounds durations.
    return bool(asked == found)


def _text(value: Any) -> str:
    return "not set" if value is None else repr(value)
