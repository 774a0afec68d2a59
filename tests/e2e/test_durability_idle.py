"""Files of trainers that expired or were deleted, and the cost of checkpoints."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braid
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer, assert_same_bits, batch, restore
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import COMMAND

SERVICE = "braid.v1.TrainingService"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DurableServer]:
    with durable.serving(tmp_path) as server:
        yield server


def create(client: braid.Client, name: str, **options: Any) -> braid.Trainer:
    return client.create_trainer(
        "noisy", name=name, loss="cross_entropy", optimizer="AdamW", **options
    )


def step(trainer: braid.Trainer, *numbers: int) -> None:
    for number in numbers:
        trainer.step(*batch(number))


def names(client: braid.Client) -> list[str]:
    return [info.name for info in client.trainers()]


def test_idle_trainer_is_unloaded_to_disk(server: DurableServer, client: braid.Client) -> None:
    used = create(client, "used", idle_timeout=600)
    idle = create(client, "idle", idle_timeout=2)
    for trainer in (used, idle):
        step(trainer, 0, 1)
    wait_until(lambda: names(client) == ["used"])
    with pytest.raises(braid.NotFound, match="idle"):
        idle.step(*batch(2))
    labels = scrape(server.metrics_url).labels_of("braid_checkpoints_total")
    assert {label["trainer"] for label in labels} == {"used"}
    server.start_again()
    assert names(client) == ["used"]
    with pytest.raises(braid.AlreadyExists, match="braid checkpoints restore idle"):
        create(client, "idle")
    reply = restore(server, "idle")
    assert (reply.trainer.step, reply.checkpoint.sequence) == (2, 2)
    back = client.trainer("idle")
    step(back, 2)
    twin = create(client, "twin")
    step(twin, 0, 1, 2)
    assert_same_bits(back.state_dict(), twin.state_dict())


def test_expired_trainer_is_restored_by_name(
    server: DurableServer, client: braid.Client
) -> None:
    """By a client without a handle for it, and on the command line."""
    trainer = create(client, "idle", idle_timeout=2)
    step(trainer, 0)
    first = trainer.save_checkpoint()
    step(trainer, 1)
    wait_until(lambda: not names(client))
    with pytest.raises(braid.NotFound):
        client.restore_trainer("idle", "none")
    with pytest.raises(braid.AlreadyExists, match="braid checkpoints restore idle"):
        create(client, "idle")
    back = create(client, "idle", idle_timeout=2, exist_ok=True)
    assert back.info().step == 2
    step(back, 2)
    wait_until(lambda: not names(client))
    assert client.restore_trainer("idle", first.name).step(*batch(1)).sequence == 2
    wait_until(lambda: not names(client))
    run = subprocess.run(
        [COMMAND, "--server", server.address, "--json", "checkpoints", "restore", "idle"],
        capture_output=True, text=True, timeout=CALL_SECONDS,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["sequence"] == 2
    assert names(client) == ["idle"]


def test_restored_trainer_survives_a_restart(
    server: DurableServer, client: braid.Client
) -> None:
    """Like every trainer that has not expired again."""
    step(create(client, "idle", idle_timeout=2), 0)
    wait_until(lambda: not names(client))
    restore(server, "idle")
    server.start_again()
    assert names(client) == ["idle"]
    wait_until(lambda: not names(client))


def test_trainer_in_use_does_not_expire(client: braid.Client) -> None:
    trainer = create(client, "busy", idle_timeout=1)
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        step(trainer, 0)
    assert names(client) == ["busy"]


def test_deletion_removes_the_trainers_files(server: DurableServer, client: braid.Client) -> None:
    """Also for a trainer that exists only on disk. Published versions stay."""
    trainer = create(client, "deleted")
    step(trainer, 0)
    trainer.save_checkpoint()
    trainer.publish(wait_durable=True)
    step(create(client, "idle", idle_timeout=1), 0)
    wait_until(lambda: names(client) == ["deleted"])
    for name in ("deleted", "idle"):
        assert server.checkpoints(name).exists()
        client.delete_trainer(name)
        assert not server.checkpoints(name).parent.exists()
        with pytest.raises(braid.NotFound):
            client.delete_trainer(name)
    server.start_again()
    assert names(client) == []
    assert [path.name for path in (server.data / "models/noisy").iterdir()] == ["2"]
    assert create(client, "deleted").info().applied_sequence == 0


def test_creation_is_idempotent_across_a_restart(server: DurableServer) -> None:
    request = message("braid.v1.CreateTrainerRequest")(
        model="noisy", name="created", losses=[{"name": "cross_entropy"}],
        optimizer={"sgd": {}}, request_id="mine",
    )

    def send() -> Any:
        with channel(server.address) as connection:
            return Stub(connection, SERVICE).CreateTrainer(request).trainer

    first = send()
    server.start_again()
    assert send().name == first.name
    assert len(list((server.data / "trainers").iterdir())) == 1


def test_interrupted_creation_does_not_reserve_the_name(
    server: DurableServer, client: braid.Client
) -> None:
    """The reply follows the first checkpoint, so no client knows about the trainer before."""
    create(client, "unborn")
    server.kill()
    for path in server.checkpoints("unborn").iterdir():
        staged = path.rename(path.with_name(f".tmp-{path.name}"))
        (staged / "manifest.json").unlink()
    server.start()
    assert names(client) == []
    assert create(client, "unborn").info().step == 0


def test_checkpoint_durations_are_reported(server: DurableServer, client: braid.Client) -> None:
    """Reports how long steps wait for a checkpoint, and how long it takes to become durable."""
    trainer = create(client, "measured", checkpoint_every=1)
    step(trainer, *range(20))
    wait_until(lambda: trainer.info().durable_sequence > 0)
    trainer.save_checkpoint()
    metrics = scrape(server.metrics_url)
    label = {"trainer": "measured"}
    pauses = metrics.value("braid_checkpoint_pause_seconds_count", **label)
    written = metrics.value("braid_checkpoints_total", outcome="written", **label)
    assert 3 <= written <= pauses
    assert metrics.value("braid_checkpoint_duration_seconds_count", **label) == written
    pause = metrics.value("braid_checkpoint_pause_seconds_sum", **label) / pauses
    duration = metrics.value("braid_checkpoint_duration_seconds_sum", **label) / written
    # Writing and syncing files takes long, but steps do not wait for it.
    assert 0 < pause < duration / 2
