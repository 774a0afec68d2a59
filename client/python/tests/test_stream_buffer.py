"""Replay buffer of a stream."""

import grpc
import numpy as np
import pytest

from braid._channel import RetryPolicy
from numbered import batch, batches

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def create(client):
    client._channel.retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)

    def create(**options):
        return client.create_trainer("fashion", loss="mse", optimizer="SGD", **options)

    return create


def run(trainer, operations, **options):
    """Runs steps over a stream. Returns their results."""
    with trainer.stream(**options) as stream:
        futures = [stream.step(*batch(number)) for number in range(operations)]
    return [future.result(timeout=0) for future in futures]


def test_full_buffer_requests_a_checkpoint(server, create):
    trainer = create(checkpoint_every=1000)
    results = run(trainer, operations=10, depth=2, buffer_operations=4)
    saved = [checkpoint.sequence for checkpoint in trainer.list_checkpoints()]
    assert saved == [4, 8]
    assert results[-1].durable_sequence == 8
    server.restart()
    trainer.step(*batch(10))
    assert batches(server) == list(range(11))


def test_buffer_limit_in_bytes_requests_a_checkpoint(server, create):
    trainer = create(checkpoint_every=1000)
    big = {"x": np.zeros((1, 2500), np.float32)}, {"target": np.zeros(1)}
    with trainer.stream(buffer_bytes=25_000) as stream:
        for _ in range(6):
            stream.step(*big)
    assert len(server.received("SaveCheckpoint")) == 2


def test_full_buffer_waits_for_checkpoints_of_the_server_first(server, create):
    trainer = create(checkpoint_every=3)
    run(trainer, operations=30, buffer_operations=3)
    assert server.received("SaveCheckpoint") == []


def test_server_without_a_data_directory_is_asked_once(server, create):
    server.fail("SaveCheckpoint", grpc.StatusCode.FAILED_PRECONDITION, "no data directory")
    trainer = create(checkpoint_every=1000)
    run(trainer, operations=30, buffer_operations=4)
    assert len(server.received("SaveCheckpoint")) == 1


def test_replay_function_replaces_the_buffer(server, create):
    trainer = create(checkpoint_every=4)
    asked = []

    def replay(number):
        asked.append(number)
        return batch(number)

    with trainer.stream(depth=1, replay=replay) as stream:
        for number in range(7):
            stream.step(*batch(number)).result(timeout=10)
        server.fail("Step", UNAVAILABLE, crash=True)
        stream.step(*batch(7))
    assert batches(server) == list(range(8))
    assert asked == [4, 5, 6]  # Batch 7 was not applied yet, so the stream still has it.
    server.restart()
    trainer.step(*batch(8))
    assert batches(server) == list(range(9))


def test_replay_counts_batches_not_operations(server, create):
    trainer = create(checkpoint_every=100)
    asked = []
    with trainer.stream(depth=1, replay=lambda n: asked.append(n) or batch(n)) as stream:
        stream.forward_backward(*batch(0))
        stream.optim_step()
        stream.step(*batch(1)).result(timeout=10)
        server.fail("Step", UNAVAILABLE, crash=True)
        stream.step(*batch(2))
    assert asked == [0, 1]
    assert batches(server) == [0, 1, 2]


def test_replay_that_returns_a_different_batch_is_an_error(server, create):
    trainer = create(checkpoint_every=100)
    with pytest.raises(ValueError, match=r"replay\(0\): returned a different batch"):
        with trainer.stream(depth=1, replay=lambda number: batch(number + 1)) as stream:
            stream.step(*batch(0)).result(timeout=10)
            server.fail("Step", UNAVAILABLE, crash=True)
            stream.step(*batch(1))
    assert batches(server) == []
