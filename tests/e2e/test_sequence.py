"""Operations are applied in the order of their numbers, exactly once."""

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
    """Returns one of each operation that does not change the repository."""
    batch = ({"x": X}, {"target": LABELS})
    return [
        ("Step", batch, {"report_split": True}),
        ("ForwardBackward", batch, {}),
        ("OptimStep", (), {}),
        ("Forward", batch, {}),
    ]


def refused(trainer: RawTrainer, method: str, request: Any) -> grpc.RpcError:
    """Returns the error. Checks that nothing has changed."""
    before = trainer.snapshot()
    with pytest.raises(grpc.RpcError) as caught:
        trainer.send(method, request)
    assert trainer.snapshot() == before
    return caught.value


def test_retry_returns_the_recorded_reply_without_changes(trainer: RawTrainer) -> None:
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


def test_reused_number_with_another_payload_is_aborted(trainer: RawTrainer) -> None:
    for method, arguments, fields in operations():
        trainer.apply(method, *arguments, **fields)
        for other in ("Step", "ForwardBackward"):
            request = trainer.request(other, {"x": X + 1}, {"target": LABELS})
            request.sequence = trainer.sequence
            error = refused(trainer, other, request)
            assert error.code() == CODES.ABORTED
            assert str(trainer.sequence) in error.details()


def test_equal_operation_of_another_client_is_aborted(trainer: RawTrainer) -> None:
    """Even with the same content."""
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


def test_recreated_trainer_with_the_same_name_is_detected(trainer: RawTrainer) -> None:
    batch = ({"x": X}, {"target": LABELS})
    assert trainer.info().id
    wrong = trainer.request("Step", *batch, sender={"trainer_id": "0" * 32})
    error = refused(trainer, "Step", wrong)
    assert error.code() == CODES.ABORTED
    assert "sender.trainer_id" in error.details()
    trainer.apply("Step", *batch, sender={"trainer_id": trainer.info().id})


def test_reused_number_with_another_method_is_aborted(trainer: RawTrainer) -> None:
    """Step and ForwardBackward have the same fields, so the payload includes the method."""
    trainer.apply("Step", {"x": X}, {"target": LABELS})
    request = trainer.request("ForwardBackward", {"x": X}, {"target": LABELS})
    request.sequence = trainer.sequence
    assert refused(trainer, "ForwardBackward", request).code() == CODES.ABORTED


@pytest.mark.parametrize("offset", [-2, 1, 5, 2**40])
@pytest.mark.parametrize("method", ["Step", "ForwardBackward", "OptimStep", "Forward"])
def test_unexpected_number_is_rejected_with_the_expected_one(
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


def test_failed_operation_does_not_consume_its_number(trainer: RawTrainer) -> None:
    request = trainer.request("Step", {"x": X[:, :9]}, {"target": LABELS})
    assert refused(trainer, "Step", request).code() == CODES.INVALID_ARGUMENT
    # The corrected operation uses the same number, which is still free.
    assert trainer.apply("Step", {"x": X}, {"target": LABELS}).status.step == 1


def test_concurrent_retries_are_applied_once(trainer: RawTrainer) -> None:
    request = trainer.request("Step", {"x": X}, {"target": LABELS})
    futures = [trainer.stub.Step.future(request) for _ in range(16)]
    replies = [future.result() for future in futures]
    assert [reply.status.replayed for reply in replies].count(False) == 1
    assert len({reply.loss for reply in replies}) == 1
    assert trainer.info().step == 1
