"""Retries of calls whose reply was lost are applied once."""

import threading
import time

import grpc
import numpy as np
import pytest

import braid

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
X = {"x": np.ones((4, 2), np.float32)}
Y = {"target": np.zeros(4, np.int64)}


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="cross_entropy", optimizer="SGD")


OPERATIONS = {
    "Step": lambda trainer: trainer.step(X, Y),
    "ForwardBackward": lambda trainer: trainer.forward_backward(X, Y),
    "Forward": lambda trainer: trainer.forward(X),
    "Publish": lambda trainer: trainer.publish(),
}


@pytest.mark.parametrize("method", OPERATIONS)
def test_retry_sends_the_same_bytes(server, trainer, method):
    server.fail(method, UNAVAILABLE, after=True)
    OPERATIONS[method](trainer)
    first, second = server.received(method)
    assert first.sequence == 1
    assert first.SerializeToString() == second.SerializeToString()
    assert trainer.info().applied_sequence == 1


def test_replayed_step_is_marked(server, trainer):
    server.fail("Step", UNAVAILABLE, after=True)
    assert trainer.step(X, Y).replayed
    result = trainer.step(X, Y)
    assert (result.sequence, result.step, result.replayed) == (2, 2, False)


def test_undelivered_call_is_retried(server, trainer):
    for _ in range(3):
        server.fail("Step", UNAVAILABLE)
    result = trainer.step(X, Y)
    assert (result.step, result.replayed) == (1, False)
    assert [request.sequence for request in server.received("Step")] == [1, 1, 1, 1]


def test_retries_end_after_the_maximum_attempts(server, trainer):
    for _ in range(5):
        server.fail("Step", UNAVAILABLE, "draining")
    with pytest.raises(braid.Unavailable, match="draining") as caught:
        trainer.step(X, Y)
    assert caught.value.attempts == 5
    assert len(server.received("Step")) == 5
    # The failed step used no number.
    assert trainer.step(X, Y).sequence == 1


def test_retries_end_with_the_timeout(server, trainer):
    for _ in range(5):
        server.fail("Step", UNAVAILABLE)
    with pytest.raises(braid.Unavailable):
        trainer.step(X, Y, timeout=0.15)
    assert len(server.received("Step")) < 5


@pytest.mark.parametrize("code", [
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL,
])
def test_other_errors_are_not_retried(server, trainer, code):
    server.fail("Step", code)
    with pytest.raises(braid.BraidError):
        trainer.step(X, Y)
    assert len(server.received("Step")) == 1
    assert trainer.step(X, Y).sequence == 1


def test_repeated_call_after_an_unknown_outcome_is_applied_once(server, trainer):
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, after=True)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.step(X, Y)
    result = trainer.step(X, Y)
    assert (result.sequence, result.step, result.replayed) == (1, 1, True)


def test_different_call_after_an_unknown_outcome_needs_sync(server, trainer):
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, after=True)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.step(X, Y)
    with pytest.raises(braid.Aborted):
        trainer.step(X, Y, lr=0.5)
    assert trainer.sync().applied_sequence == 1
    assert trainer.step(X, Y, lr=0.5).sequence == 2


def test_create_is_recognized_by_its_request_id(server, client):
    server.fail("CreateTrainer", UNAVAILABLE, after=True)
    client.create_trainer("fashion", loss="mse", optimizer="SGD")
    first, second = server.received("CreateTrainer")
    assert first.request_id == second.request_id != ""
    with pytest.raises(braid.AlreadyExists):
        client.create_trainer("fashion", loss="mse", optimizer="SGD")


def test_delete_with_a_lost_reply_succeeds(server, client, trainer):
    server.fail("DeleteTrainer", UNAVAILABLE, after=True)
    trainer.delete()
    assert client.trainers() == []
    with pytest.raises(braid.NotFound):
        trainer.delete()


def test_operations_of_several_threads_are_serialized(server, trainer):
    threads = [
        threading.Thread(target=lambda: [trainer.step(X, Y) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [request.sequence for request in server.received("Step")] == list(range(1, 41))


def test_backoff_doubles_up_to_its_limit():
    policy = braid._channel.RetryPolicy(initial_backoff=0.1, max_backoff=0.5)
    for attempt, longest in enumerate([0.1, 0.2, 0.4, 0.5, 0.5], start=1):
        assert longest / 2 <= policy.backoff(attempt) <= longest


def test_hanging_server_raises_deadline_exceeded(server, client):
    release = threading.Event()
    server.ServerMetadata = lambda request, context: release.wait(30)
    start = time.monotonic()
    try:
        with pytest.raises(braid.DeadlineExceeded):
            client.server_metadata(timeout=0.2)
    finally:
        release.set()
    assert time.monotonic() - start < 10
