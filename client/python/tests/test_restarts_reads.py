"""Reads of a trainer's state include all operations of the handle, even after a restart."""

import io
import time

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
    """Records the applied batches at each successful read."""
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


def test_read_after_a_restart_replays_first(server, trainer, read, found):
    steps(trainer, range(6))
    server.restart()
    read(trainer)
    assert found[-1] == list(range(6))
    steps(trainer, range(6, 9))
    assert batches(server) == list(range(9))


def test_read_after_a_restart_detected_by_the_uptime_replays_first(server, trainer, read, found):
    steps(trainer, range(6))
    server.lose()
    read(trainer)
    assert found[-1] == list(range(6))


def test_slow_reply_with_the_uptime_is_not_taken_for_a_restart(server, trainer, read, found):
    started = time.monotonic()
    delays = [0.2]

    def uptime():
        seconds = time.monotonic() - started
        if delays:
            time.sleep(delays.pop())
        return seconds

    server.uptime = uptime
    steps(trainer, range(1))
    read(trainer)
    assert found == [[0]]


def test_read_after_a_closed_stream_replays_first(server, trainer, read, found):
    with trainer.stream() as stream:
        for number in range(7):
            stream.step(*batch(number))
    server.restart()
    read(trainer)
    assert found[-1] == list(range(7))


@pytest.mark.parametrize("restart", ["restart", "lose"])
def test_read_during_a_stream_waits_for_the_replay(server, trainer, read, found, restart):
    """Covers a stream whose connection is still open."""
    with trainer.stream() as stream:
        futures = [stream.step(*batch(number)) for number in range(6)]
        futures[-1].result(timeout=10)
        getattr(server, restart)()
        read(trainer)
        assert found[-1] == list(range(6))
        stream.step(*batch(6))
    assert batches(server) == list(range(7))


def test_read_before_the_first_operation_of_a_stream_replays_first(server, trainer, read, found):
    steps(trainer, range(6))
    with trainer.stream() as stream:
        server.restart()
        read(trainer)
        assert found[-1] == list(range(6))
        stream.step(*batch(6))
    assert batches(server) == list(range(7))


def test_restart_between_check_and_call_repeats_the_read(server, trainer, kind, read, found):
    steps(trainer, range(6))
    server.late.append(server.lose)
    if kind == "evaluate":  # Not repeated.
        with pytest.raises(braid.Unavailable, match="the server restarted"):
            read(trainer)
    read(trainer)
    assert found[-1] == list(range(6))


def test_read_completes_an_interrupted_replay(server, trainer, read, found):
    steps(trainer, range(7))
    server.fail("Step", UNAVAILABLE, crash=True)
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, skip=2)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.step(*batch(7))
    assert batches(server) == list(range(5))
    read(trainer)
    assert found[-1] == list(range(7))


def test_lost_operations_without_a_policy_are_an_error(server, client, read):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    steps(trainer, range(4))
    server.restart()
    with pytest.raises(braid.FailedPrecondition, match="operation 1: .* lost operations up to 4"):
        read(trainer)
    trainer.sync()
    read(trainer)


def test_lost_operations_of_a_stream_without_a_policy_are_an_error(server, client, read):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    with pytest.raises(braid.FailedPrecondition, match="lost operations up to 1"):
        with trainer.stream() as stream:
            stream.step(*batch(0)).result(timeout=10)
            server.restart()
            read(trainer)


def test_failure_during_a_replay_is_raised_by_the_read(server, trainer, read):
    steps(trainer, range(6))
    server.restart()
    server.fail("Step", grpc.StatusCode.FAILED_PRECONDITION, "loss is not finite")
    with pytest.raises(braid.FailedPrecondition, match="operation 5: was .* and now fails"):
        read(trainer)
    read(trainer)  # Succeeds now.
    assert batches(server) == list(range(6))


def test_failure_during_a_replay_ends_the_stream(server, trainer, read):
    with pytest.raises(braid.FailedPrecondition, match="operation 5: was .* and now fails"):
        with trainer.stream() as stream:
            futures = [stream.step(*batch(number)) for number in range(6)]
            futures[-1].result(timeout=10)
            server.restart()
            server.fail("Step", grpc.StatusCode.FAILED_PRECONDITION, "loss is not finite")
            read(trainer)
    read(trainer)  # Succeeds now.
    assert batches(server) == list(range(6))


def test_checkpoint_restored_by_another_handle_is_detected(client, trainer, read):
    steps(trainer, range(7))
    client.trainer("fashion").restore_checkpoint()
    with pytest.raises(braid.FailedPrecondition, match="another client restored a checkpoint"):
        read(trainer)


def test_read_includes_later_operations_of_another_handle(client, trainer, read, found):
    steps(client.trainer("fashion"), range(2))
    read(trainer)
    assert found == [[0, 1]]


def test_restoring_the_newest_checkpoint_replays_first(server, trainer):
    """A replayed operation may write a newer checkpoint."""
    steps(trainer, range(7))
    for state, _ in server.trainers["fashion"]._states.values():
        state.options.checkpoints.every_operations = 3
    server.restart()
    assert trainer.restore_checkpoint().applied_sequence == 6
    steps(trainer, [66])
    assert batches(server) == [0, 1, 2, 3, 4, 5, 66]


def test_restoring_a_named_checkpoint_replays_nothing(server, trainer):
    steps(trainer, range(7))
    name = trainer.list_checkpoints()[0].name
    server.restart()
    assert trainer.restore_checkpoint(name).applied_sequence == 4
    assert len(server.received("Step")) == 7
    steps(trainer, [44])
    assert batches(server) == [0, 1, 2, 3, 44]


def test_restoring_ignores_operations_that_cannot_be_replayed(server, client):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    steps(trainer, range(2))
    trainer.save_checkpoint()
    steps(trainer, range(2, 4))
    server.restart()
    assert trainer.restore_checkpoint().applied_sequence == 2
    steps(trainer, [22])
    assert batches(server) == [0, 1, 22]


def test_sync_replays_lost_operations(server, trainer):
    """Drops only the operation with an unknown outcome."""
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
def test_sync_ignores_operations_that_cannot_be_replayed(server, trainer, code):
    steps(trainer, range(7))
    server.restart()
    server.fail("Step", code, skip=1)
    assert trainer.sync().applied_sequence == 5
    steps(trainer, [55])
    assert batches(server) == [0, 1, 2, 3, 4, 55]


def test_sync_drops_nothing_while_the_server_is_unreachable(server, trainer):
    steps(trainer, range(7))
    server.restart()
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, skip=1)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.sync()
    assert trainer.sync().applied_sequence == 7


def test_read_waits_for_the_server_up_to_its_timeout(server, trainer):
    steps(trainer, range(2))
    server.stop()
    with pytest.raises((braid.Unavailable, braid.DeadlineExceeded)):
        trainer.state_dict(timeout=0.3)


def test_read_without_a_restart_needs_one_call(server, trainer):
    steps(trainer, range(6))
    np.testing.assert_array_equal(trainer.state_dict()["weight"], server.state["weight"])
    assert len(server.received("GetStateDict")) == 1
    assert len(server.received("GetTrainer")) == 1
    assert len(server.received("Step")) == 6
