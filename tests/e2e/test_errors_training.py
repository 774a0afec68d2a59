"""Every row of the error table for training operations: after each the trainer is, bit for bit,
what it was, and goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from e2e.protocol import tensor
from e2e.raw_trainer import RawTrainer
from e2e.rejection import Rejection, assigner, ids
from e2e.server import Server

CODES = grpc.StatusCode
X = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 0])
VALUES = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)


def replace(field: str, *tensors: Any) -> Callable[[Any], None]:
    """Puts `tensors` in place of the request's inputs or targets."""

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


# For Step and ForwardBackward, whatever the loss.
INPUT_ROWS = [
    Rejection("trainer", assigner(trainer="nosuch"), ("nosuch",), None, CODES.NOT_FOUND),
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
SGD = {"sgd": {"lr": 0.1, "momentum": 0.9}}


def make(address: str, loss: str, optimizer: dict, first: np.ndarray) -> RawTrainer:
    """A trainer with all that a failed operation must leave alone: momentum, gradients, a count."""
    trainer = RawTrainer(address, "chain", {"name": loss}, optimizer)
    trainer.apply("Step", {"x": X[:3]}, {"target": first[:3]})
    trainer.apply("ForwardBackward", {"x": X[:4]}, {"target": first[:4]})
    return trainer


@pytest.fixture(scope="module")
def address(serve: Callable[[str], Server]) -> str:
    return serve("cpu*2").address


@pytest.fixture(scope="module")
def classifier(address: str) -> Iterator[RawTrainer]:
    trainer = make(address, "cross_entropy", SGD, LABELS)
    yield trainer
    trainer.delete()


@pytest.fixture(scope="module")
def regressor(address: str) -> Iterator[RawTrainer]:
    """With AdamW, which has no momentum."""
    trainer = make(address, "mse", {"adamw": {}}, VALUES)
    yield trainer
    trainer.delete()


def reject(trainer: RawTrainer, method: str, row: Rejection, request: Any) -> None:
    """The row's request fails, changes nothing, and the trainer goes on."""
    before = trainer.snapshot()
    row.expect(lambda changed: trainer.send(method, changed), request)
    assert trainer.snapshot() == before
    mode = type(trainer.request("Forward")).MODE_EVAL
    trainer.apply("Forward", {"x": X}, mode=mode)


@pytest.mark.parametrize("method", ["Step", "ForwardBackward"])
@pytest.mark.parametrize("row", INPUT_ROWS, ids=ids(INPUT_ROWS))
def test_bad_batch(classifier: RawTrainer, method: str, row: Rejection) -> None:
    reject(classifier, method, row, classifier.request(method, {"x": X}, {"target": LABELS}))


@pytest.mark.parametrize("method", ["Step", "ForwardBackward"])
@pytest.mark.parametrize("row", MSE_ROWS, ids=ids(MSE_ROWS))
def test_bad_float_target(regressor: RawTrainer, method: str, row: Rejection) -> None:
    reject(regressor, method, row, regressor.request(method, {"x": X}, {"target": VALUES}))


# With targets and without; without, there is no target that could be wrong.
@pytest.mark.parametrize("row", INPUT_ROWS, ids=ids(INPUT_ROWS))
def test_bad_forward(classifier: RawTrainer, row: Rejection) -> None:
    if row.name == "no targets":
        assert not classifier.apply("Forward", {"x": X}).HasField("loss")
        return
    reject(classifier, "Forward", row, classifier.request("Forward", {"x": X}, {"target": LABELS}))


@pytest.mark.parametrize("row", HYPER_ROWS, ids=ids(HYPER_ROWS))
def test_bad_hyper_parameters(classifier: RawTrainer, row: Rejection) -> None:
    step = classifier.request("Step", {"x": X}, {"target": LABELS})
    reject(classifier, "Step", row, step)
    reject(classifier, "OptimStep", row, classifier.request("OptimStep"))


def test_momentum_for_an_optimizer_that_has_none(regressor: RawTrainer) -> None:
    row = Rejection(
        "momentum",
        assigner(hyper_parameters__momentum=0.9),
        ("momentum",),
        "hyper_parameters.momentum",
    )
    reject(regressor, "OptimStep", row, regressor.request("OptimStep"))


def test_index_out_of_range(address: str) -> None:
    """A model that fails on its input, on one replica of two."""
    trainer = RawTrainer(address, "words", {"name": "mse"}, SGD)
    good, bad = np.arange(4), np.array([1, 2, 3, 1000])
    row = Rejection("index", inputs(bad, "words"), ("inputs", "index out of range"), "inputs")
    for method in ("Step", "ForwardBackward"):
        request = trainer.request(method, {"words": good}, {"target": VALUES[:4]})
        before = trainer.snapshot()
        row.expect(lambda changed, method=method: trainer.send(method, changed), request)
        assert trainer.snapshot() == before
        trainer.apply("Step", {"words": good}, {"target": VALUES[:4]})
    trainer.delete()


def test_failed_operations_leave_no_trace(address: str) -> None:
    """What cannot be seen from outside, gradients and momentum, is as in a twin that was spared."""
    spared = make(address, "cross_entropy", SGD, LABELS)
    tried = make(address, "cross_entropy", SGD, LABELS)
    for row in INPUT_ROWS:
        for method in ("Step", "ForwardBackward"):
            request = tried.request(method, {"x": X}, {"target": LABELS})
            row.expect(lambda changed, method=method: tried.send(method, changed), request)
    for trainer in (spared, tried):
        trainer.apply("OptimStep")
        trainer.apply("Step", {"x": X}, {"target": LABELS})
    assert tried.state() == spared.state()
    spared.delete()
    tried.delete()
