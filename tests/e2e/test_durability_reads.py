"""Reads of a trainer's state after kill -9 include all operations of the handle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braid
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer, assert_same_bits, batch
from safetensors.numpy import load_file

STEPS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableServer]:
    with durable.serving(tmp_path_factory.mktemp("reads")) as server:
        yield server


@pytest.fixture
def trainer(client: braid.Client, request: pytest.FixtureRequest) -> braid.Trainer:
    """A trainer after STEPS steps, none of them durable."""
    trainer = create(client, request.node.name.translate(str.maketrans("[]", "--")))
    for number in range(STEPS):
        trainer.step(*batch(number))
    return trainer


def create(client: braid.Client, name: str, **options: Any) -> braid.Trainer:
    options = {"checkpoint_every": 100, "journal": "none", **options}
    return client.create_trainer(
        "noisy", name=name, loss="cross_entropy", optimizer="AdamW", **options
    )


def downloaded(trainer: braid.Trainer, directory: Path) -> dict[str, Any]:
    trainer.download(directory / "weights", "safetensors")
    return dict(sorted(load_file(directory / "weights").items()))


def test_state_dict_after_kill_9(server: DurableServer, trainer: braid.Trainer) -> None:
    wanted = trainer.state_dict()
    server.start_again()
    assert_same_bits(trainer.state_dict(), wanted)
    assert trainer.info().applied_sequence == STEPS


def test_download_after_kill_9(server: DurableServer, trainer: braid.Trainer, tmp_path: Path) -> None:
    wanted = downloaded(trainer, tmp_path)
    server.start_again()
    assert_same_bits(downloaded(trainer, tmp_path), wanted)


def test_evaluate_after_kill_9(server: DurableServer, trainer: braid.Trainer) -> None:
    wanted = trainer.evaluate([batch(0), batch(1)])
    server.start_again()
    assert trainer.evaluate([batch(0), batch(1)]) == wanted
    assert wanted.step == STEPS


def test_save_checkpoint_after_kill_9(server: DurableServer, trainer: braid.Trainer) -> None:
    server.start_again()
    assert trainer.save_checkpoint().sequence == STEPS
    server.start_again()
    assert trainer.info().applied_sequence == STEPS


def test_restore_checkpoint_after_kill_9(server: DurableServer, client: braid.Client) -> None:
    trainer = create(client, "restored")
    for number in range(STEPS):
        trainer.step(*batch(number))
        if number == 1:
            name = trainer.save_checkpoint().name
    server.start_again()
    assert trainer.restore_checkpoint(name).applied_sequence == 2
    assert trainer.step(*batch(2)).sequence == 3


@pytest.mark.parametrize("left", [True, False])
def test_stream_after_kill_9(server: DurableServer, client: braid.Client, left: bool) -> None:
    trainer = create(client, f"streamed-{left}")
    with trainer.stream(depth=2) as stream:
        for number in range(STEPS):
            future = stream.step(*batch(number))
        future.result()
        wanted = trainer.state_dict()
        if not left:
            server.start_again()
            assert_same_bits(trainer.state_dict(), wanted)
    if left:
        server.start_again()
        assert_same_bits(trainer.state_dict(), wanted)
    assert trainer.step(*batch(STEPS)).sequence == STEPS + 1


def test_closed_streams_operations_are_resent(server: DurableServer, client: braid.Client) -> None:
    """They still belong to this handle after `sync`, so it resends them."""
    trainer = create(client, "left")
    with pytest.raises(KeyError), trainer.stream(depth=8) as stream:
        for number in range(20):
            stream.step(*batch(number))
        raise KeyError
    stands = trainer.sync().applied_sequence
    trainer.step(*batch(20))
    wanted = trainer.state_dict()
    server.start_again()
    assert_same_bits(trainer.state_dict(), wanted)
    assert trainer.step(*batch(21)).sequence == stands + 2


def test_lost_operations_without_retries_fail(server: DurableServer, client: braid.Client) -> None:
    trainer = create(client, "no-policy", checkpoint_every=None)
    for number in range(STEPS):
        trainer.step(*batch(number))
    server.start_again()
    with pytest.raises(braid.FailedPrecondition, match=f"lost operations up to {STEPS}"):
        trainer.state_dict()
    assert trainer.sync().step == 0
    trainer.state_dict()
