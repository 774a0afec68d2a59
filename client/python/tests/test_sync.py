"""Trainer.sync after operations with an unknown outcome."""

import grpc
import pytest

import braid
from braid._channel import RetryPolicy
from numbered import batch, batches

DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.fixture(autouse=True)
def fast(client):
    client._channel.retry = RetryPolicy(attempts=2, initial_backoff=0.01, max_backoff=0.02)


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="mse", optimizer="SGD", checkpoint_every=100)


def steps(trainer, numbers):
    for number in numbers:
        trainer.step(*batch(number))


def time_out(server, trainer, number, applied):
    """Runs a step that times out."""
    server.fail("Step", DEADLINE_EXCEEDED, after=applied)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.step(*batch(number))


def leave_a_stream(server, trainer, numbers, applied):
    """Leaves a stream by an exception after `applied` operations without any reply."""
    server.withhold(applied + 1)
    if applied < len(numbers):
        server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, skip=applied)
    with pytest.raises(braid.DeadlineExceeded), trainer.stream(depth=len(numbers)) as stream:
        for number in numbers:
            stream.step(*batch(number))


def test_sync_waits_for_operations_in_flight(server, trainer):
    steps(trainer, range(2))
    time_out(server, trainer, 2, applied=False)
    fake, late = server.trainers["fashion"], server.received("Step")[-1]
    server.queued.append(lambda: fake.apply("Step", late, None))
    assert trainer.sync().applied_sequence == 3
    steps(trainer, [3])
    assert batches(server) == [0, 1, 2, 3]


@pytest.mark.parametrize("applied", [False, True])
def test_applied_step_that_timed_out_is_kept_for_replay(server, trainer, applied):
    steps(trainer, range(5))
    time_out(server, trainer, 5, applied)
    assert trainer.sync().applied_sequence == 5 + applied
    steps(trainer, range(6, 9))
    before = batches(server)
    server.restart()
    steps(trainer, [9])
    assert batches(server) == [*before, 9] == [*range(5), *([5] * applied), *range(6, 10)]


@pytest.mark.parametrize("applied", range(4))
def test_applied_operations_of_an_aborted_stream_are_kept(server, trainer, applied):
    steps(trainer, range(2))
    leave_a_stream(server, trainer, [2, 3, 4, 5], applied)
    assert trainer.sync().applied_sequence == 2 + applied
    steps(trainer, [66])
    server.restart()
    steps(trainer, [77])
    assert batches(server) == [*range(2 + applied), 66, 77]


def test_rejected_operation_keeps_the_unacknowledged_one(server, trainer):
    steps(trainer, range(2))
    time_out(server, trainer, 2, applied=True)
    with pytest.raises(braid.Aborted, match="Trainer.sync"):
        trainer.step(*batch(33))
    assert trainer.sync().applied_sequence == 3
    server.restart()
    steps(trainer, [3])
    assert batches(server) == [0, 1, 2, 3]


def test_only_the_last_unacknowledged_operation_is_kept(server, trainer):
    """If the server applied an earlier one, earlier operations cannot be replayed."""
    steps(trainer, range(2))
    time_out(server, trainer, 2, applied=True)
    time_out(server, trainer, 33, applied=False)
    assert trainer.sync().applied_sequence == 3
    steps(trainer, [3])
    server.restart()
    with pytest.raises(braid.FailedPrecondition, match="can resend only from 4 "):
        steps(trainer, [4])
    assert batches(server) == []


def test_operation_of_another_handle_is_not_adopted(server, client, trainer):
    steps(trainer, range(2))
    time_out(server, trainer, 2, applied=False)
    steps(client.trainer("fashion"), [22])
    assert trainer.sync().applied_sequence == 3
    server.restart()
    with pytest.raises(braid.FailedPrecondition, match="can resend only from 4 "):
        steps(trainer, [3])


def test_restart_during_sync_is_survived(server, trainer):
    steps(trainer, range(5))
    time_out(server, trainer, 5, applied=True)
    server.queued.append(server.lose)
    assert trainer.sync().applied_sequence == 5
    steps(trainer, [55])
    assert batches(server) == [0, 1, 2, 3, 4, 55]


def test_interrupt_leaves_the_outcome_unknown(server, trainer, monkeypatch):
    steps(trainer, range(2))
    call = trainer._handle.channel.call

    def interrupted(*arguments, **options):
        call(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trainer._handle.channel, "call", interrupted)
        trainer.step(*batch(2))
    assert trainer.sync().applied_sequence == 3
    server.restart()
    steps(trainer, [3])
    assert batches(server) == [0, 1, 2, 3]


def test_nothing_is_kept_without_a_checkpoint_policy(server, client):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    steps(trainer, range(2))
    time_out(server, trainer, 2, applied=True)
    assert trainer._handle.unacknowledged == []
    assert trainer.sync().applied_sequence == 3
    steps(trainer, [3])
    assert batches(server) == [0, 1, 2, 3]
