"""Every row of the error table for training operations: after each the trainer is, bit for bit,
what it was, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from e2e.support.error_checks import Rejection, assigner, ids
from e2e.support.raw_trainer import RawTrainer
from e2e.support.server import Server
from e2e.support.training_error_cases import (
    HYPER_ROWS,
    INPUT_ROWS,
    LABELS,
    MSE_ROWS,
    VALUES,
    X,
    inputs,
)

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
    """Of an embedding, found when the model was loaded."""
    trainer = RawTrainer(address, "words", {"name": "mse"}, SGD)
    good, bad = np.arange(4), np.array([1, 2, 3, 1000])
    row = Rejection(
        "index", inputs(bad, "words"), ("'words'", "1000 at index 3", "0 to 999"), "inputs[0]"
    )
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
