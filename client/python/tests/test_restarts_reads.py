"""What reads a trainer's state finds in it all that the handle has operated, restart or not."""

import io

import grpc
import numpy as np
import pytest

import braid
from braid._channel import RetryPolicy
from numbered import batch, batches

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
READS = {
    "state_dict": lambda trainer: trainer.state_dict(),
    "download": lambda trainer: trainer.download(io.BytesIO()),
    "evaluate": lambda trainer: trainer.evaluate([batch(0)]),
    "save_checkpoint": lambda trainer: trainer.save_checkpoint(),
}
METHODS = {
    "state_dict": "GetStateDict", "download": "DownloadModel", "evaluate": "Evaluate",
    "save_checkpoint": "SaveCheckpoint",
}


@pytest.fixture(autouse=True)
def fast(client):
    client._channel.retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="mse", optimizer="SGD", checkpoint_every=4)


@pytest.fixture(params=READS)
def kind(request):
    return request.param


@pytest.fixture
def read(kind):
    return READS[kind]


@pytest.fixture
def found(server, kind):
    """For every read that was answered, which batches the trainer stood on."""
    found = []
    method = METHODS[kind]
    answer = getattr(server, method)

    def watch(request, context):
        found.append(batches(server))
        return answer(request, context)

    setattr(server, method, watch)
    return found


def steps(trainer, numbers):
    for number in numbers:
        trainer.step(*batch(number))


def test_after_a_restart(server, trainer, read, found):
    steps(trainer, range(6))
    server.restart()
    read(trainer)
    assert found[-1] == list(range(6))
    steps(trainer, range(6, 9))
    assert batches(server) == list(range(9))


def test_after_a_restart_that_only_the_uptime_shows(server, trainer, read, found):
    steps(trainer, range(6))
    server.lose()
    read(trainer)
    assert found[-1] == list(range(6))


def test_after_a_stream_that_was_left(server, trainer, read, found):
    with trainer.stream() as stream:
        for number in range(7):
            stream.step(*batch(number))
    server.restart()
    read(trainer)
    assert found[-1] == list(range(7))


@pytest.mark.parametrize("restart", ["restart", "lose"])
def test_while_a_stream_is_open(server, trainer, read, found, restart):
    """Also where its connection still stands."""
    with trainer.stream() as stream:
        futures = [stream.step(*batch(number)) for number in range(6)]
        futures[-1].result(timeout=10)
        getattr(server, restart)()
        read(trainer)
        assert found[-1] == list(range(6))
        stream.step(*batch(6))
    assert batches(server) == list(range(7))


def test_before_anything_went_through_an_open_stream(server, trainer, read, found):
    steps(trainer, range(6))
    with trainer.stream() as stream:
        server.restart()
        read(trainer)
        assert found[-1] == list(range(6))
        stream.step(*batch(6))
    assert batches(server) == list(range(7))


def test_a_restart_between_the_check_and_the_call(server, trainer, kind, read, found):
    steps(trainer, range(6))
    server.late.append(server.lose)
    if kind == "evaluate":  # Sent once, as where the connection breaks.
        with pytest.raises(braid.Unavailable, match="started again"):
            read(trainer)
    read(trainer)
    assert found[-1] == list(range(6))


def test_what_an_interrupted_call_has_not_made_up_for(server, trainer, read, found):
    steps(trainer, range(7))
    server.fail("Step", UNAVAILABLE, crash=True)
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, skip=2)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.step(*batch(7))
    assert batches(server) == list(range(5))
    read(trainer)
    assert found[-1] == list(range(7))


def test_without_a_policy_what_is_lost_is_said(server, client, read):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    steps(trainer, range(4))
    server.restart()
    with pytest.raises(braid.FailedPrecondition, match="expects operation 1.* lost those up to 4"):
        read(trainer)
    trainer.sync()
    read(trainer)


def test_what_cannot_be_sent_again_through_an_open_stream_is_said(server, client, read):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    with pytest.raises(braid.FailedPrecondition, match="lost those up to 1"):
        with trainer.stream() as stream:
            stream.step(*batch(0)).result(timeout=10)
            server.restart()
            read(trainer)


def test_an_operation_that_fails_when_it_is_sent_again(server, trainer, read):
    steps(trainer, range(6))
    server.restart()
    server.fail("Step", grpc.StatusCode.FAILED_PRECONDITION, "loss is not finite")
    with pytest.raises(braid.FailedPrecondition, match="operation 5 had been .* and now fails"):
        read(trainer)
    read(trainer)  # Now it does not.
    assert batches(server) == list(range(6))


def test_an_operation_that_fails_when_it_is_sent_again_ends_the_stream(server, trainer, read):
    with pytest.raises(braid.FailedPrecondition, match="operation 5 had been .* and now fails"):
        with trainer.stream() as stream:
            futures = [stream.step(*batch(number)) for number in range(6)]
            futures[-1].result(timeout=10)
            server.restart()
            server.fail("Step", grpc.StatusCode.FAILED_PRECONDITION, "loss is not finite")
            read(trainer)
    read(trainer)  # Now it does not.
    assert batches(server) == list(range(6))


def test_a_checkpoint_that_another_handle_restored_is_said(client, trainer, read):
    steps(trainer, range(7))
    client.trainer("fashion").restore_checkpoint()
    with pytest.raises(braid.FailedPrecondition, match="another client has restored a checkpoint"):
        read(trainer)


def test_what_another_handle_has_gone_on_with_is_read_as_it_is(client, trainer, read, found):
    steps(client.trainer("fashion"), range(2))
    read(trainer)
    assert found == [[0, 1]]


def test_restoring_the_newest_checkpoint_sends_again_first(server, trainer):
    """So it is a newer one, where what was lost has one written again."""
    steps(trainer, range(7))
    for state, _ in server.trainers["fashion"]._states.values():
        state.options.checkpoints.every_operations = 3
    server.restart()
    assert trainer.restore_checkpoint().applied_sequence == 6
    steps(trainer, [66])
    assert batches(server) == [0, 1, 2, 3, 4, 5, 66]


def test_a_checkpoint_that_is_named_needs_nothing_sent_again(server, trainer):
    steps(trainer, range(7))
    name = trainer.list_checkpoints()[0].name
    server.restart()
    assert trainer.restore_checkpoint(name).applied_sequence == 4
    assert len(server.received("Step")) == 7
    steps(trainer, [44])
    assert batches(server) == [0, 1, 2, 3, 44]


def test_restoring_leaves_what_cannot_be_sent_again(server, client):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    steps(trainer, range(2))
    trainer.save_checkpoint()
    steps(trainer, range(2, 4))
    server.restart()
    assert trainer.restore_checkpoint().applied_sequence == 2
    steps(trainer, [22])
    assert batches(server) == [0, 1, 22]


def test_what_is_lost_is_sent_again_before_going_on_from_where_the_trainer_stands(server, trainer):
    """An operation whose outcome is not known is given up, those that were replied to are not."""
    steps(trainer, range(6))
    server.stop()
    with pytest.raises((braid.Unavailable, braid.DeadlineExceeded)):
        trainer.step(*batch(6), timeout=0.2)
    server.start_again()
    assert trainer.sync().applied_sequence == 6
    steps(trainer, [66])
    assert batches(server) == [0, 1, 2, 3, 4, 5, 66]


@pytest.mark.parametrize("code", [
    grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.RESOURCE_EXHAUSTED,
])
def test_going_on_leaves_what_cannot_be_sent_again(server, trainer, code):
    steps(trainer, range(7))
    server.restart()
    server.fail("Step", code, skip=1)
    assert trainer.sync().applied_sequence == 5
    steps(trainer, [55])
    assert batches(server) == [0, 1, 2, 3, 4, 55]


def test_going_on_gives_nothing_up_while_the_server_is_away(server, trainer):
    steps(trainer, range(7))
    server.restart()
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, skip=1)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.sync()
    assert trainer.sync().applied_sequence == 7


def test_a_read_waits_for_the_server_no_longer_than_its_timeout(server, trainer):
    steps(trainer, range(2))
    server.stop()
    with pytest.raises((braid.Unavailable, braid.DeadlineExceeded)):
        trainer.state_dict(timeout=0.3)


def test_state_is_read_once_where_nothing_happened(server, trainer):
    steps(trainer, range(6))
    np.testing.assert_array_equal(trainer.state_dict()["weight"], server.state["weight"])
    assert len(server.received("GetStateDict")) == 1
    assert len(server.received("GetTrainer")) == 1
    assert len(server.received("Step")) == 6
