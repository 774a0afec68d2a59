"""Log of operations, and the rule for replay."""

import dataclasses

import pytest

import braid
from braid import _replay
from braid._replay import Operation, OperationLog

INFO = braid.TrainerInfo(
    name="t", model="m", base_version=1, losses=[], optimizer={}, options={}, devices=(), step=0,
    applied_sequence=0, durable_sequence=0, accumulated=0, skipped=0, lr=0.1, lrs={}, memory=[],
    id="1", last_operator="",
)


def make_log(applied, last, keeps=True):
    log = OperationLog(applied, keeps)
    for sequence in range(applied + 1, last + 1):
        log.add(Operation(sequence, "Step", b"x" * 1000))
    return log


def never():
    raise AssertionError("restarted() must not be called")


def resume(applied, *, durable=0, seen=7, sent=9, log=None, restarted=never):
    info = dataclasses.replace(INFO, applied_sequence=applied, durable_sequence=durable)
    return _replay.resume_at(info, log or make_log(3, sent), seen, sent, restarted)


@pytest.mark.parametrize("applied, first", [(7, 8), (8, 8), (9, 9)])
def test_lost_replies_resend_the_last_operation(applied, first):
    assert resume(applied) == first


def test_restart_replays_from_the_durable_number():
    assert resume(3, durable=3, restarted=lambda: True) == 4
    assert resume(6, durable=6, restarted=lambda: True) == 7


@pytest.mark.parametrize("applied, durable, restarted, message", [
    (10, 0, never, "expects operation 11, this handle is at 9: another client operates"),
    (5, 5, lambda: False, "expects operation 6, although.*another client restored a checkpoint"),
    (5, 4, lambda: True, "another client restored a checkpoint"),
    (2, 2, lambda: True, "expects operation 3: .* lost operations up to 7. This client can "
                         "resend only from 4 "),
])
def test_other_positions_are_errors(applied, durable, restarted, message):
    with pytest.raises(braid.FailedPrecondition, match=message):
        resume(applied, durable=durable, restarted=restarted)


def test_error_without_a_policy_names_the_reason():
    log = make_log(7, 9, keeps=False)
    with pytest.raises(braid.FailedPrecondition, match="only from 8 .*no checkpoint policy"):
        resume(3, durable=3, restarted=lambda: True, log=log)


def test_operations_are_kept_until_durable():
    log = make_log(0, 5)
    log.discard(applied=5, durable=2)
    assert (log.base, log.last, log.get(3).sequence) == (2, 5, 3)
    log.discard(applied=5, durable=9)
    assert (log.base, log.last) == (5, 5)


def test_durable_operations_without_a_reply_are_kept():
    """Their replies will come."""
    log = make_log(0, 5)
    log.discard(applied=3, durable=5)
    assert (log.base, log.last, log.get(4).sequence) == (3, 5, 4)


def test_operations_without_a_policy_are_kept_until_applied():
    log = make_log(0, 5, keeps=False)
    log.discard(applied=4, durable=0)
    assert (log.base, log.last) == (4, 5)


def test_limits_bound_operations_and_bytes():
    log = make_log(0, 3)
    assert not log.is_full(1 << 20)
    log.limit(3, None)
    assert log.is_full(1)
    log.limit(4, 6000)
    assert not log.is_full(1000)
    assert log.is_full(2000)
    log.discard(applied=3, durable=3)
    assert not log.is_full(1 << 40)  # An empty log accepts any size.


def test_rebuildable_operations_take_no_room():
    log = OperationLog(0, keeps=True)
    log.limit(None, 10_000)
    operation = Operation(1, "Step", b"x" * 9000, rebuild=lambda: b"again")
    log.add(operation)
    assert log.is_full(9000)
    assert operation.request() == b"x" * 9000
    log.release(operation)
    assert not log.is_full(9000)
    assert operation.request() == b"again"


def test_numbers_of_dropped_operations_are_reused():
    log = make_log(0, 5)
    log.drop_after(3)
    log.add(Operation(4, "Publish", b""))
    assert (log.last, log.get(4).method) == (4, "Publish")
