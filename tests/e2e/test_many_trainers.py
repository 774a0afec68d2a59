"""Trainers that leave memory while nobody uses them, in a server that may keep none there."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import braid
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer, assert_same_bits, batch
from e2e.support.server import COMMAND

TRAINERS = 12
STEPS = 15


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableServer]:
    with durable.serving(tmp_path_factory.mktemp("many"), flags={"--trainer_memory": "0"}) as server:
        yield server


def create(client: braid.Client, name: str, **options: object) -> braid.Trainer:
    return client.create_trainer(
        "noisy", name=name, loss="cross_entropy", optimizer="AdamW", **options
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_trainers_that_come_and_go_train_as_one_that_stays(
    server: DurableServer, client: braid.Client
) -> None:
    expected = create(client, "streamed")
    with expected.stream() as stream:
        for number in range(STEPS):
            stream.step(*batch(number))
    names = [f"t{index}" for index in range(TRAINERS)]
    trainers = [create(client, name) for name in names]
    for number in range(STEPS):
        for trainer in trainers:
            trainer.step(*batch(number))
        if number % 5 == 0:
            wait_until(lambda: all(trainer.info().on_disk for trainer in trainers))
    for trainer in trainers:
        assert_same_bits(trainer.state_dict(), expected.state_dict())


def test_no_step_is_lost_if_the_server_is_killed_while_trainers_leave(
    server: DurableServer, client: braid.Client
) -> None:
    trainers = [create(client, f"killed{index}", checkpoint_every=7) for index in range(4)]
    expected = create(client, "expected")
    for number in range(60):
        expected.step(*batch(number))

    def train(trainer: braid.Trainer) -> None:
        for number in range(60):
            trainer.step(*batch(number))
            time.sleep(0.02 * (number % 3 == 0))

    threads = [threading.Thread(target=train, args=(trainer,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for delay in (0.9, 1.3, 0.7):
        time.sleep(delay)
        server.start_again()
    for thread in threads:
        thread.join()
    for trainer in trainers:
        assert trainer.info().applied_sequence == 60
        assert_same_bits(trainer.state_dict(), expected.state_dict())


def test_everything_works_on_a_trainer_on_disk(
    server: DurableServer, client: braid.Client
) -> None:
    trainer = create(client, "used")

    def leave() -> None:
        wait_until(lambda: trainer.info().on_disk)

    trainer.step(*batch(0))
    leave()
    weights = trainer.state_dict()
    leave()
    before = trainer.evaluate([batch(0), batch(1)])
    leave()
    checkpoint = trainer.save_checkpoint()
    leave()
    assert checkpoint.name in [one.name for one in trainer.list_checkpoints()]
    trainer.step(*batch(1))
    leave()
    assert trainer.restore_checkpoint(checkpoint.name).applied_sequence == 1
    leave()
    assert_same_bits(trainer.state_dict(), weights)
    assert trainer.evaluate([batch(0), batch(1)]) == before
    leave()
    assert trainer.publish() == 2
    leave()
    trainer.delete()
    with pytest.raises(braid.NotFound):
        client.trainer("used")


def test_the_list_of_trainers_says_which_are_on_disk(
    server: DurableServer, client: braid.Client
) -> None:
    trainer = create(client, "listed")
    trainer.step(*batch(0))
    wait_until(lambda: trainer.info().on_disk)
    (info,) = [info for info in client.trainers() if info.name == "listed"]
    assert info.on_disk
    assert info.step == 1
    assert info.memory == []
    table = subprocess.run(
        [COMMAND, "--server", server.address, "trainers"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    (row,) = [line for line in table.splitlines() if line.startswith("listed")]
    assert row.endswith("on disk")
