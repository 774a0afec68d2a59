"""Two clients on one trainer with coinciding sequence numbers: the conflict is reported."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import braid
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer, assert_same_bits, batch

SGD = {"name": "SGD", "lr": 0.1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableServer]:
    with durable.serving(tmp_path_factory.mktemp("others")) as server:
        yield server


@pytest.fixture
def first(client: braid.Client) -> Iterator[braid.Trainer]:
    """A trainer after six steps, four of them durable."""
    trainer = client.create_trainer(
        "noisy", name="shared", loss="cross_entropy", optimizer=SGD, checkpoint_every=1000, journal="none"
    )
    steps(trainer, range(4))
    trainer.save_checkpoint()
    steps(trainer, range(4, 6))
    yield trainer
    trainer.delete()


def steps(trainer: braid.Trainer, numbers: Any) -> None:
    for number in numbers:
        trainer.step(*batch(number))


def streamed(trainer: braid.Trainer) -> None:
    with trainer.stream() as stream:
        stream.step(*batch(6)).result()


OPERATE: dict[str, Callable[[braid.Trainer], Any]] = {
    "step": lambda trainer: trainer.step(*batch(6)),
    "stream": streamed,
}
READ: dict[str, Callable[[braid.Trainer], Any]] = {
    "state_dict": lambda trainer: trainer.state_dict(),
    "evaluate": lambda trainer: trainer.evaluate([batch(0)]),
    "save_checkpoint": lambda trainer: trainer.save_checkpoint(),
}


def assert_conflict_reported(trainer: braid.Trainer, call: Callable[[braid.Trainer], Any]) -> None:
    """Checks that the call reports a conflict, and that the client can resynchronize."""
    before = trainer.info()
    with pytest.raises(braid.FailedPrecondition, match="another client"):
        call(trainer)
    assert trainer.info() == before
    assert trainer.sync().applied_sequence == before.applied_sequence
    assert trainer.step(*batch(9)).sequence == before.applied_sequence + 1


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("call", [*OPERATE, *READ])
def test_conflicting_steps_after_a_restart_are_detected(
    server: DurableServer, client: braid.Client, first: braid.Trainer, call: str, others: int
) -> None:
    server.start_again()
    second = client.trainer("shared")
    steps(second, range(10, 10 + others))
    second.save_checkpoint()
    assert_conflict_reported(first, {**OPERATE, **READ}[call])


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("call", [*OPERATE, *READ])
def test_restore_conflict_detected(client: braid.Client, first: braid.Trainer, call: str, others: int) -> None:
    second = client.trainer("shared")
    assert second.restore_checkpoint().applied_sequence == 4
    steps(second, range(10, 10 + others))
    assert_conflict_reported(first, {**OPERATE, **READ}[call])


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("call", [*OPERATE, *READ])
def test_conflict_after_a_restore_survives_a_restart(
    server: DurableServer,
    client: braid.Client,
    first: braid.Trainer,
    call: str,
    ending: signal.Signals,
) -> None:
    """No read undoes the decision."""
    second = client.trainer("shared")
    second.restore_checkpoint()
    wanted = second.state_dict()
    server.start_again(ending)
    assert_conflict_reported(first, {**OPERATE, **READ}[call])
    second.sync()
    assert second.restore_checkpoint("step-000000004-sequence-000000004").applied_sequence == 4
    assert_same_bits(second.state_dict(), wanted)


def test_restoring_handle_continues_after_restarts(
    server: DurableServer, first: braid.Trainer
) -> None:
    first.restore_checkpoint()
    steps(first, range(4, 6))
    wanted = first.state_dict()
    server.start_again()
    assert_same_bits(first.state_dict(), wanted)
    assert first.step(*batch(6)).sequence == 7


def test_attached_handle_continues_after_restarts(
    server: DurableServer, client: braid.Client, first: braid.Trainer
) -> None:
    first.save_checkpoint()
    second = client.trainer("shared")
    server.start_again()
    assert second.step(*batch(6)).sequence == 7
    server.start_again()
    assert second.step(*batch(7)).sequence == 8
