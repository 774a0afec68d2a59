"""A crash of the server loses no answered operation, even if no client resends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import braid
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer, assert_same_bits, batch
from e2e.support.journal_kills import kill_while_training
from e2e.support.metrics import scrape

STEPS = 40


@pytest.fixture(scope="module", params=["torchscript", "pair"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DurableServer]:
    directory = tmp_path_factory.mktemp("journal")
    with durable.serving(directory, format=request.param) as server:
        yield server


def create(client: braid.Client, name: str, **options: object) -> braid.Trainer:
    return client.create_trainer(
        "noisy",
        name=name,
        loss="cross_entropy",
        optimizer="AdamW",
        schedule={"name": "StepLR", "step_size": 7},
        clip_grad_norm=1.0,
        **options,
    )


@pytest.fixture(scope="module")
def expected(server: DurableServer) -> dict:
    """The weights after STEPS steps without a crash."""
    with braid.connect(server.address) as client:
        trainer = create(client, "undisturbed")
        for number in range(STEPS):
            trainer.step(*batch(number))
        return trainer.state_dict()


def test_another_client_continues_after_the_last_reply(
    server: DurableServer, expected: dict
) -> None:
    with braid.connect(server.address) as client:
        trainer = create(client, "continued")
        for number in range(STEPS // 2):
            result = trainer.step(*batch(number))
            assert result.durable_sequence == result.step
    server.start_again()
    with braid.connect(server.address) as client:
        trainer = client.trainer("continued")
        assert trainer.info().step == STEPS // 2
        assert trainer.info().durable_sequence == STEPS // 2
        assert len(trainer.list_checkpoints()) == 1
        for number in range(STEPS // 2, STEPS):
            trainer.step(*batch(number))
        assert_same_bits(trainer.state_dict(), expected)


def test_the_same_client_continues_without_noticing(
    server: DurableServer, expected: dict
) -> None:
    with braid.connect(server.address) as client:
        trainer = create(client, "noticing")
        for number in range(STEPS):
            trainer.step(*batch(number))
            if number in (3, 4, 30):
                server.start_again()
        assert_same_bits(trainer.state_dict(), expected)


def test_without_a_journal_a_crash_loses_operations_after_the_newest_checkpoint(
    server: DurableServer) -> None:
    with braid.connect(server.address) as client:
        trainer = create(client, "unjournaled", journal="none")
        result = trainer.step(*batch(0))
        assert (result.step, result.durable_sequence) == (1, 0)
        assert trainer.info().options["journal"] == "none"
        server.start_again()
        with pytest.raises(braid.FailedPrecondition, match="no checkpoint policy"):
            trainer.step(*batch(1))
        assert trainer.sync().step == 0


def test_kills_under_load_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with durable.serving(tmp_path, format="pair") as server:
        assert kill_while_training(server, kills=12, generator=random.Random(5)) == []


def test_metrics_show_what_the_journal_costs(server: DurableServer) -> None:
    with braid.connect(server.address) as client:
        trainer = create(client, "measured")
        for number in range(3):
            trainer.step(*batch(number))
        metrics = scrape(server.metrics_url)
        assert metrics.value("braid_journal_written_bytes_total", trainer="measured") > 3000
        assert metrics.value("braid_journal_wait_seconds_count", trainer="measured") == 3
        assert metrics.value("braid_journal_errors_total", trainer="measured") == 0
