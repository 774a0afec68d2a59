"""Evaluation over a stream of batches."""

import threading

import grpc
import numpy as np
import pytest

import braid

X = {"x": np.ones((5, 2), np.float32)}
Y = {"target": np.zeros(5, np.int64)}


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="cross_entropy", optimizer="SGD")


def test_evaluate_returns_loss_and_metrics(server, trainer):
    result = trainer.evaluate([(X, Y)] * 3, metrics=["top_k", "accuracy"], k=3)
    assert result == braid.EvaluationResult(
        loss=0.5, rows=15, metrics={"accuracy": 0.75, "top_k": 0.75}, confusion=None, step=3
    )
    first, *others = server.received("Evaluate")
    assert (first.trainer, list(first.metrics), first.k) == ("fashion", ["top_k", "accuracy"], 3)
    assert [(other.trainer, list(other.metrics)) for other in others] == [("", []), ("", [])]
    for request in (first, *others):
        assert request.inputs[0].data == X["x"].tobytes()
        assert request.targets[0].name == "target"
    assert trainer.info().applied_sequence == 0


def test_confusion_is_a_matrix(trainer):
    result = trainer.evaluate([(X, Y)], metrics=("confusion",))
    np.testing.assert_array_equal(result.confusion, [[1, 2], [3, 4]])
    assert result.confusion.dtype == np.int64
    assert result.metrics == {}


def test_absent_loss_is_none(server, trainer):
    server.evaluates_loss = False
    result = trainer.evaluate([(X, Y)])
    assert (result.loss, result.metrics) == (None, {"accuracy": 0.75})


def test_batches_are_iterated_lazily_in_the_calling_thread(server, trainer):
    def batches():
        for _ in range(20):
            assert threading.current_thread() is threading.main_thread()
            yield X, Y

    assert trainer.evaluate(batches()).rows == 100
    assert len(server.received("Evaluate")) == 20


def test_rejection_by_the_server_ends_the_evaluation(server, trainer):
    server.fail("Evaluate", grpc.StatusCode.INVALID_ARGUMENT, "no metric 'f1'")
    endless = iter(lambda: (X, Y), None)
    with pytest.raises(braid.InvalidArgument, match="no metric 'f1'"):
        trainer.evaluate(endless, metrics=["f1"])


def test_exceptions_of_batches_propagate(trainer):
    def batches():
        yield X, Y
        raise KeyError("file")

    with pytest.raises(KeyError, match="file"):
        trainer.evaluate(batches())


def test_empty_batches_are_rejected(trainer):
    with pytest.raises(ValueError, match="batches: empty"):
        trainer.evaluate([])


def test_metrics_must_be_a_list(trainer):
    with pytest.raises(ValueError, match=r"such as \['accuracy'\]"):
        trainer.evaluate([(X, Y)], metrics="accuracy")


def test_broken_connection_is_not_retried(server, trainer):
    server.fail("Evaluate", grpc.StatusCode.UNAVAILABLE, "gone", skip=1)
    with pytest.raises(braid.Unavailable, match="gone"):
        trainer.evaluate([(X, Y)] * 3)
    assert len(server.received("Evaluate")) == 2
