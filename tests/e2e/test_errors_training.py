"""Error table of training operations. After each the trainer is unchanged bit for bit and
continues."""

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
    """A trainer with state that a failed operation must not change: momentum, gradients, counts."""
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
    """A trainer with AdamW, which has no momentum."""
    trainer = make(address, "mse", {"adamw": {}}, VALUES)
    yield trainer
    trainer.delete()


def reject(trainer: RawTrainer, method: str, row: Rejection, request: Any) -> None:
    """Checks that the row's request fails, changes nothing, and that a valid one succeeds."""
    before = trainer.snapshot()
    row.expect(lambda changed: trainer.send(method, changed), request)
    assert trainer.snapshot() == before
    mode = type(trainer.request("Forward")).MODE_EVAL
    trainer.apply("Forward", {"x": X}, mode=mode)


@pytest.mark.parametrize("method", ["Step", "ForwardBackward"])
@pytest.mark.parametrize("row", INPUT_ROWS, ids=ids(INPUT_ROWS))
def test_invalid_batch_is_rejected(classifier: RawTrainer, method: str, row: Rejection) -> None:
    reject(classifier, method, row, classifier.request(method, {"x": X}, {"target": LABELS}))


@pytest.mark.parametrize("method", ["Step", "ForwardBackward"])
@pytest.mark.parametrize("row", MSE_ROWS, ids=ids(MSE_ROWS))
def test_invalid_float_target_fails(regressor: RawTrainer, method: str, row: Rejection) -> None:
    reject(regressor, method, row, regressor.request(method, {"x": X}, {"target": VALUES}))


# Without targets, only inputs can be invalid.
@pytest.mark.parametrize("row", INPUT_ROWS, ids=ids(INPUT_ROWS))
def test_invalid_forward_is_rejected(classifier: RawTrainer, row: Rejection) -> None:
    if row.name == "no targets":
        assert not classifier.apply("Forward", {"x": X}).HasField("loss")
        return
    reject(classifier, "Forward", row, classifier.request("Forward", {"x": X}, {"target": LABELS}))


@pytest.mark.parametrize("row", HYPER_ROWS, ids=ids(HYPER_ROWS))
def test_invalid_hyperparameters_are_rejected(classifier: RawTrainer, row: Rejection) -> None:
    step = classifier.request("Step", {"x": X}, {"target": LABELS})
    reject(classifier, "Step", row, step)
    reject(classifier, "OptimStep", row, classifier.request("OptimStep"))


def test_momentum_is_rejected_by_optimizers_without_it(regressor: RawTrainer) -> None:
    row = Rejection(
        "momentum",
        assigner(hyper_parameters__momentum=0.9),
        ("momentum",),
        "hyper_parameters.momentum",
    )
    reject(regressor, "OptimStep", row, regressor.request("OptimStep"))


def test_embedding_index_out_of_range_is_rejected(address: str) -> None:
    """The range comes from the embedding, detected when the model was loaded."""
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


def test_failed_operations_do_not_change_the_trainer(address: str) -> None:
    """Compares gradients and momentum, by later training, with a trainer without failures."""
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
