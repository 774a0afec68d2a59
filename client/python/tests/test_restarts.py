"""Single operations across a restart of the server, which loses operations that are not durable."""

import grpc
import pytest

import braid
from braid._channel import RetryPolicy
from numbered import batch, batches

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(autouse=True)
def fast(client):
    client._channel.retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="mse", optimizer="SGD", checkpoint_every=4)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", range(9))
def test_restart_at_any_point_is_survived(server, trainer, point, after):
    server.fail("Step", UNAVAILABLE, skip=point, after=after, crash=True)
    results = [trainer.step(*batch(number)) for number in range(9)]
    assert batches(server) == list(range(9))
    assert [result.step for result in results] == list(range(1, 10))


@pytest.mark.parametrize("lost", range(1, 4))
def test_restart_during_a_replay_is_survived(server, trainer, lost):
    server.fail("Step", UNAVAILABLE, skip=7, crash=True)
    server.fail("Step", UNAVAILABLE, skip=lost, crash=True, after=True)
    for number in range(10):
        trainer.step(*batch(number))
    assert batches(server) == list(range(10))


def test_restart_between_calls_is_detected_by_the_uptime(server, trainer):
    """The channel reconnects before the next call, so no call fails."""
    for number in range(6):
        trainer.step(*batch(number))
    server.lose()
    assert trainer.step(*batch(6)).sequence == 7
    assert batches(server) == list(range(7))
    assert server.received("ListDevices")


def test_restart_on_the_same_port_is_survived(server, trainer):
    for number in range(6):
        trainer.step(*batch(number))
    server.restart()
    trainer.step(*batch(6))
    assert batches(server) == list(range(7))


def test_all_operations_are_replayed(server, client):
    trainer = client.create_trainer(
        "fashion", loss_mode="client", optimizer="SGD", checkpoint_every=100
    )
    x, y = batch(0)
    trainer.forward(x, keep_graph=True)
    trainer.backward(x)
    trainer.optim_step(metric=0.5)
    trainer.forward(x, y, mode="eval")
    trainer.publish()
    before = list(server.trainers["fashion"].history)
    server.lose()
    trainer.forward(x)
    after = server.trainers["fashion"].history
    assert after[:5] == before
    assert len(after) == 6


def test_failure_during_a_replay_is_explained(server, trainer):
    for number in range(6):
        trainer.step(*batch(number))
    server.fail("Step", UNAVAILABLE, crash=True)
    server.fail("Step", grpc.StatusCode.FAILED_PRECONDITION, "loss is not finite", skip=1)
    with pytest.raises(braid.FailedPrecondition) as caught:
        trainer.step(*batch(6))
    assert str(caught.value) == (
        "operation 5: was applied, was lost in a restart of the server, and now fails: "
        "loss is not finite"
    )
    trainer.step(*batch(6))  # Succeeds now.
    assert batches(server) == list(range(7))


def test_interrupted_replay_continues_with_the_next_call(server, trainer):
    for number in range(7):
        trainer.step(*batch(number))
    server.fail("Step", UNAVAILABLE, crash=True)
    server.fail("Step", grpc.StatusCode.DEADLINE_EXCEEDED, skip=2)
    with pytest.raises(braid.DeadlineExceeded):
        trainer.step(*batch(7))
    assert batches(server) == list(range(5))
    trainer.step(*batch(7))
    assert batches(server) == list(range(8))


def test_handle_waits_for_the_server_up_to_the_timeout(server, trainer):
    for _ in range(30):
        server.fail("Step", UNAVAILABLE)
    trainer.step(*batch(0))
    for _ in range(1000):
        server.fail("Step", UNAVAILABLE)
    # The deadline ends the wait, or the last attempt.
    with pytest.raises((braid.Unavailable, braid.DeadlineExceeded)):
        trainer.step(*batch(1), timeout=0.3)


def test_durable_operations_are_discarded(server, trainer):
    for number in range(9):
        trainer.step(*batch(number))
    log = trainer._handle.log
    assert (log.base, log.last) == (8, 9)


def test_full_buffer_requests_a_checkpoint(server, client):
    trainer = client.create_trainer(
        "fashion", loss="mse", optimizer="SGD", checkpoint_every_seconds=1000
    )
    trainer._handle.log.limit(3, None)
    for number in range(8):
        trainer.step(*batch(number))
    assert [checkpoint.sequence for checkpoint in trainer.list_checkpoints()] == [3, 6]
    server.restart()
    trainer.step(*batch(8))
    assert batches(server) == list(range(9))


@pytest.fixture
def full(client):
    """Returns a trainer with loss_mode "client" and a buffer that one operation fills."""
    trainer = client.create_trainer(
        "fashion", loss_mode="client", optimizer="SGD", checkpoint_every=1000
    )
    trainer._handle.log.limit(None, 1)
    return trainer


def test_full_buffer_does_not_separate_forward_and_backward(server, full):
    """Checkpoints contain no graph, so they are written before or after both operations."""
    x, _ = batch(0)
    for _ in range(2):
        full.forward(x, keep_graph=True)
        full.backward(x)
        full.optim_step()
    assert [checkpoint.sequence for checkpoint in full.list_checkpoints()] == [2, 3, 5]
    full.forward(x, keep_graph=True)
    full.backward(x)
    assert [checkpoint.sequence for checkpoint in full.list_checkpoints()][-1] == 6
    server.restart()
    full.optim_step()
    assert [method for _, method, _ in server.trainers["fashion"].history[-3:]] == [
        "Forward", "Backward", "OptimStep",
    ]


def test_failure_between_forward_and_backward_does_not_separate_them(server, full):
    x, _ = batch(0)
    full.forward(x, keep_graph=True)
    with pytest.raises(braid.FailedPrecondition, match="no gradients"):
        full.optim_step()
    full.backward(x)
    server.restart()
    full.optim_step()
    assert len(server.trainers["fashion"].history) == 3


def test_full_buffer_is_emptied_between_forwards_without_backward(server, full):
    for _ in range(4):
        full.forward(batch(0)[0], keep_graph=True)
    assert [checkpoint.sequence for checkpoint in full.list_checkpoints()] == [1, 2, 3]


def test_lost_operations_without_a_policy_are_an_error(server, client):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    trainer.step(*batch(0))
    trainer.save_checkpoint()
    for number in range(1, 4):
        trainer.step(*batch(number))
    server.restart()
    with pytest.raises(braid.FailedPrecondition, match="operation 2: .* lost operations up to 4"):
        trainer.step(*batch(4))
    assert trainer.sync().step == 1
    assert trainer.step(*batch(9)).sequence == 2


def test_operations_of_another_handle_are_detected(client, trainer):
    client.trainer("fashion").step(*batch(0))
    with pytest.raises(braid.Aborted, match="another client operates this trainer.*Trainer.sync"):
        trainer.step(*batch(1))
    client.trainer("fashion").step(*batch(2))
    with pytest.raises(braid.FailedPrecondition, match="expects operation 3.*another client"):
        trainer.step(*batch(1))
    trainer.sync()
    assert trainer.step(*batch(3)).sequence == 3


def test_operations_of_another_handle_are_not_replayed(server, client, trainer):
    for number in range(3):
        trainer.step(*batch(number))
    other = client.trainer("fashion")
    other.step(*batch(3))
    other.forward(batch(0)[0])
    other.step(*batch(5))
    trainer.sync()
    trainer.step(*batch(6))
    server.restart()
    with pytest.raises(braid.FailedPrecondition, match="can resend only from 7 "):
        trainer.step(*batch(7))
    assert batches(server) == [0, 1, 2, 3]


def test_checkpoint_restored_by_another_handle_is_kept(server, client, trainer):
    for number in range(7):
        trainer.step(*batch(number))
    client.trainer("fashion").restore_checkpoint()
    with pytest.raises(braid.FailedPrecondition, match="another client restored a checkpoint"):
        trainer.step(*batch(7))
    assert batches(server) == [0, 1, 2, 3]


def test_disconnect_before_the_last_reply_is_not_a_restart(server, client, trainer):
    for _ in range(1000):
        server.fail("Step", UNAVAILABLE)
    with pytest.raises((braid.Unavailable, braid.DeadlineExceeded)):
        trainer.step(*batch(0), timeout=0.1)
    server.forget_faults()
    server.lose()  # Loses nothing, but counts as a restart.
    for number in range(6):
        trainer.step(*batch(number))
    client.trainer("fashion").restore_checkpoint()
    with pytest.raises(braid.FailedPrecondition, match="another client restored a checkpoint"):
        trainer.step(*batch(6))
    assert batches(server) == [0, 1, 2, 3]


def test_training_continues_from_a_restored_checkpoint(server, trainer):
    for number in range(9):
        trainer.step(*batch(number))
    names = [checkpoint.name for checkpoint in trainer.list_checkpoints()]
    info = trainer.restore_checkpoint(names[0])
    assert (info.step, info.applied_sequence) == (4, 4)
    assert trainer.step(*batch(44)).sequence == 5
    assert batches(server) == [0, 1, 2, 3, 44]


def test_removed_trainer_is_not_found(server, trainer):
    trainer.step(*batch(0))
    server.stop()
    server.trainers.clear()  # Imitates a server without a data directory.
    server.start_again()
    with pytest.raises(braid.NotFound):
        trainer.step(*batch(1))
