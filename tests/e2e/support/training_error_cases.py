"""Error table of training operations, on the model chain: [6, 10] → 5 classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from e2e.support.error_checks import Rejection, assigner
from e2e.support.protocol import tensor

X = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 0])
VALUES = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)


def replace(field: str, *tensors: Any) -> Callable[[Any], None]:
    """Replaces the request's inputs or targets by `tensors`."""

    def change(request: Any) -> None:
        del getattr(request, field)[:]
        getattr(request, field).extend(tensors)

    return change


def inputs(array: np.ndarray, name: str = "x") -> Callable[[Any], None]:
    return replace("inputs", tensor(name, array))


def target(array: np.ndarray, name: str = "target") -> Callable[[Any], None]:
    return replace("targets", tensor(name, array))


def labels_with(value: int) -> np.ndarray:
    return np.array([0, 1, 2, 3, 4, value])


def values_with(value: float) -> np.ndarray:
    changed = VALUES.copy()
    changed[3, 2] = value
    return changed


def short_input(request: Any) -> None:
    request.inputs[0].data = request.inputs[0].data[:-1]


def short_target(request: Any) -> None:
    request.targets[0].data = request.targets[0].data[:-1]


# For Step and ForwardBackward with any loss.
INPUT_ROWS = [
    Rejection("trainer", assigner(trainer="nosuch"), ("nosuch",), None, grpc.StatusCode.NOT_FOUND),
    Rejection("input name", inputs(X, "y"), ("'y'", "'x'"), "inputs[0].name"),
    Rejection("no inputs", replace("inputs"), ("'x'",), "inputs"),
    Rejection(
        "duplicate input",
        replace("inputs", tensor("x", X), tensor("x", X)),
        ("'x'",),
        "inputs[1].name",
    ),
    Rejection(
        "input datatype",
        inputs(X.astype(np.float64)),
        ("'x'", "FP64", "FP32"),
        "inputs[0].datatype",
    ),
    Rejection(
        "input rank",
        inputs(X[:, :, None]),
        ("'x'", "[6, 10, 1]", "[-1, 10]"),
        "inputs[0].shape",
    ),
    Rejection(
        "input dimension",
        inputs(X[:, :9]),
        ("'x'", "[6, 9]", "[-1, 10]"),
        "inputs[0].shape",
    ),
    Rejection("input bytes", short_input, ("'x'", "239", "240"), "inputs[0].data"),
    Rejection("no rows", inputs(X[:0]), ("'x'", "[0, 10]"), "inputs[0].shape"),
    Rejection("no targets", replace("targets"), ("target",), "targets"),
    Rejection("target name", target(LABELS, "y"), ("'y'", "'target'"), "targets[0].name"),
    Rejection(
        "two targets",
        replace("targets", tensor("target", LABELS), tensor("more", LABELS)),
        ("more", "target"),
        "targets[1].name",
    ),
    Rejection("target rows", target(LABELS[:5]), ("target", "5", "6"), "targets[0].shape"),
    Rejection("target bytes", short_target, ("target", "47", "48"), "targets[0].data"),
    Rejection(
        "target datatype",
        target(LABELS.astype(np.int32)),
        ("target", "INT32", "INT64"),
        "targets[0].datatype",
    ),
    Rejection(
        "target rank",
        target(LABELS[:, None]),
        ("target", "INT64 [6, 1]", "INT64 [6]"),
        "targets[0].shape",
    ),
    Rejection("class too high", target(labels_with(5)), ("class index 5", "0 to 4"), "targets[0]"),
    Rejection(
        "class negative",
        target(labels_with(-1)),
        ("class index -1", "0 to 4"),
        "targets[0]",
    ),
    Rejection(
        "probabilities' shape",
        target(VALUES[:, :4]),
        ("target", "[6, 4]", "[6, 5]"),
        "targets[0].shape",
    ),
]
MSE_ROWS = [
    Rejection("target nan", target(values_with(math.nan)), ("NaN", "row 3"), "targets[0]"),
    Rejection("target shape", target(VALUES[:, :1]), ("[6, 1]", "[6, 5]"), "targets[0].shape"),
    Rejection(
        "target datatype",
        target(VALUES.astype(np.float64)),
        ("FP64", "FP32"),
        "targets[0].datatype",
    ),
    Rejection("target rows", target(VALUES[:5]), ("5", "6"), "targets[0].shape"),
]


HYPER_ROWS = [
    Rejection(
        f"{name} {value}",
        assigner(**{f"hyper_parameters__{name}": value}),
        (name, str(value)),
        f"hyper_parameters.{name}",
    )
    for name in ("lr", "weight_decay", "momentum")
    for value in (-0.5, math.nan, math.inf)
]
