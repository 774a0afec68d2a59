"""Operations are applied in the order of their numbers, each exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from e2e.support.raw_trainer import RawTrainer
from e2e.support.server import Server

CODES = grpc.StatusCode
X = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 0])


@pytest.fixture
def trainer(serve: Callable[[str], Server]) -> Iterator[RawTrainer]:
    trainer = RawTrainer(
        serve("cpu*2").address,
        "chain",
        {"name": "cross_entropy"},
        {"sgd": {"lr": 0.1, "momentum": 0.9}},
    )
    yield trainer
    trainer.delete()


def operations() -> list[tuple[str, tuple, dict]]:
    """One of each operation that leaves the repository alone."""
    batch = ({"x": X}, {"target": LABELS})
    return [
        ("Step", batch, {"report_split": True}),
        ("ForwardBackward", batch, {}),
        ("OptimStep", (), {}),
        ("Forward", batch, {}),
    ]


def refused(trainer: RawTrainer, method: str, request: Any) -> grpc.RpcError:
    """The error; nothing has changed."""
    before = trainer.snapshot()
    with pytest.raises(grpc.RpcError) as caught:
        trainer.send(method, request)
    assert trainer.snapshot() == before
    return caught.value


def test_replay_returns_the_recorded_reply_and_changes_nothing(trainer: RawTrainer) -> None:
    for method, arguments, fields in operations():
        request = trainer.request(method, *arguments, **fields)
        reply = trainer.apply(method, *arguments, **fields)
        assert not reply.status.replayed
        before = trainer.snapshot()
        for _ in range(2):
            again = trainer.send(method, request)
            assert again.status.replayed
            again.status.replayed = False
            assert again == reply
        assert trainer.snapshot() == before


def test_number_taken_by_another_payload_is_aborted(trainer: RawTrainer) -> None:
    for method, arguments, fields in operations():
        trainer.apply(method, *arguments, **fields)
        for other in ("Step", "ForwardBackward"):
            request = trainer.request(other, {"x": X + 1}, {"target": LABELS})
            request.sequence = trainer.sequence
            error = refused(trainer, other, request)
            assert error.code() == CODES.ABORTED
            assert str(trainer.sequence) in error.details()


def test_another_clients_operation_is_not_ones_own_again(trainer: RawTrainer) -> None:
    """Although it asks for the same."""
    first = {"client_id": "a"}
    for method, arguments, fields in operations():
        trainer.apply(method, *arguments, **fields, sender=first)
        trainer.sequence -= 1
        other = trainer.request(method, *arguments, **fields, sender={"client_id": "b"})
        own = trainer.request(method, *arguments, **fields, sender=first)
        trainer.sequence += 1
        error = refused(trainer, method, other)
        assert error.code() == CODES.ABORTED
        assert "another client" in error.details()
        assert trainer.send(method, own).status.replayed


def test_another_trainer_of_the_name_is_not_the_one_meant(trainer: RawTrainer) -> None:
    batch = ({"x": X}, {"target": LABELS})
    assert trainer.info().id
    wrong = trainer.request("Step", *batch, sender={"trainer_id": "0" * 32})
    error = refused(trainer, "Step", wrong)
    assert error.code() == CODES.ABORTED
    assert "sender.trainer_id" in error.details()
    trainer.apply("Step", *batch, sender={"trainer_id": trainer.info().id})


def test_same_payload_of_another_operation_is_aborted(trainer: RawTrainer) -> None:
    """Step and ForwardBackward take the same fields: the method belongs to the payload."""
    trainer.apply("Step", {"x": X}, {"target": LABELS})
    request = trainer.request("ForwardBackward", {"x": X}, {"target": LABELS})
    request.sequence = trainer.sequence
    assert refused(trainer, "ForwardBackward", request).code() == CODES.ABORTED


@pytest.mark.parametrize("offset", [-2, 1, 5, 2**40])
@pytest.mark.parametrize("method", ["Step", "ForwardBackward", "OptimStep", "Forward"])
def test_any_other_number_is_refused_with_the_one_expected(
    trainer: RawTrainer, method: str, offset: int
) -> None:
    for _ in range(2):
        trainer.apply("ForwardBackward", {"x": X}, {"target": LABELS})
    tensors = () if method == "OptimStep" else ({"x": X}, {"target": LABELS})
    request = trainer.request(method, *tensors)
    request.sequence += offset
    error = refused(trainer, method, request)
    assert error.code() == CODES.FAILED_PRECONDITION
    assert str(request.sequence) in error.details()
    assert f"expected {trainer.sequence + 1}" in error.details()
    trainer.apply(method, *tensors)


def test_update_needs_gradients(trainer: RawTrainer) -> None:
    error = refused(trainer, "OptimStep", trainer.request("OptimStep"))
    assert error.code() == CODES.FAILED_PRECONDITION
    assert "gradient" in error.details()
    trainer.apply("ForwardBackward", {"x": X}, {"target": LABELS})
    trainer.apply("OptimStep")
    error = refused(trainer, "OptimStep", trainer.request("OptimStep"))
    assert error.code() == CODES.FAILED_PRECONDITION


def test_failed_operation_uses_up_no_number(trainer: RawTrainer) -> None:
    request = trainer.request("Step", {"x": X[:, :9]}, {"target": LABELS})
    assert refused(trainer, "Step", request).code() == CODES.INVALID_ARGUMENT
    # Corrected, it is sent with the same number, which no payload has taken.
    assert trainer.apply("Step", {"x": X}, {"target": LABELS}).status.step == 1


def test_same_number_sent_by_many_at_once_is_applied_once(trainer: RawTrainer) -> None:
    request = trainer.request("Step", {"x": X}, {"target": LABELS})
    futures = [trainer.stub.Step.future(request) for _ in range(16)]
    replies = [future.result() for future in futures]
    assert [reply.status.replayed for reply in replies].count(False) == 1
    assert len({reply.loss for reply in replies}) == 1
    assert trainer.info().step == 1
