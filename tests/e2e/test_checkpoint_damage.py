"""Unusable checkpoints, and disks that are full."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import braid
import grpc
import pytest
import torch
from e2e.support import durable, models
from e2e.support.durable import DurableServer, assert_same_bits, batch, restore
from e2e.support.server import Server, run_to_exit
from torch import nn

SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}
ADAM = {"name": "Adam", "lr": 0.01}


def create(client: braid.Client, name: str = "noisy", **options) -> braid.Trainer:
    options = {"loss": "cross_entropy", "optimizer": SGD, **options}
    return client.create_trainer("noisy", name=name, **options)


def step(trainer: braid.Trainer, *numbers: int) -> None:
    for number in numbers:
        trainer.step(*batch(number))


def truncate(directory: Path) -> None:
    path = directory / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(directory: Path) -> None:
    path = directory / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def remove_a_file(directory: Path) -> None:
    (directory / "weights.safetensors").unlink()


def remove_the_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def flip_a_digit_of_the_manifest(directory: Path) -> None:
    path = directory / "manifest.json"
    text = path.read_text()
    assert '"skipped": 0' in text
    path.write_text(text.replace('"skipped": 0', '"skipped": 1'))


def make_newer(directory: Path) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["format_version"] += 1
    path.write_text(json.dumps(manifest))


DAMAGES = [
    (truncate, "optimizer.safetensors"),
    (flip_a_bit, "weights.safetensors"),
    (remove_a_file, "weights.safetensors"),
    (remove_the_manifest, "manifest.json"),
    (flip_a_digit_of_the_manifest, "manifest.json"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableServer]:
    """A server that tests do not stop."""
    with durable.serving(tmp_path_factory.mktemp("damage")) as server:
        yield server


@pytest.mark.parametrize(("damage", "file"), DAMAGES)
def test_damaged_checkpoint_is_not_restored(
    server: DurableServer, client: braid.Client, damage: Callable[[Path], None], file: str
) -> None:
    """The error names the file, and the trainer continues unchanged."""
    trainer = create(client, damage.__name__)
    step(trainer, 0)
    saved = trainer.save_checkpoint()
    step(trainer, 1)
    wanted = trainer.state_dict()
    damage(server.checkpoints(trainer.name) / saved.name)
    with pytest.raises(braid.DataLoss) as caught:
        trainer.restore_checkpoint(saved.name)
    assert file in caught.value.message
    assert_same_bits(trainer.state_dict(), wanted)
    assert trainer.step(*batch(2)).step == 3
    # The previous one is the newest now.
    assert trainer.restore_checkpoint().step == 0
    trainer.delete()


def test_restart_skips_a_damaged_checkpoint(tmp_path: Path, format: str) -> None:
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        wanted = {}
        for damage, _ in DAMAGES:
            # A journal may still have the step that the damaged checkpoint has.
            trainer = create(client, damage.__name__, journal="none")
            step(trainer, 0, 1)
            trainer.save_checkpoint()
            wanted[trainer.name] = trainer.state_dict()
            step(trainer, 2)
            trainer.save_checkpoint()
        server.kill()
        for damage, _ in DAMAGES:
            damage(server.checkpoints(damage.__name__) / "step-000000003-sequence-000000003")
        server.start()
        for damage, file in DAMAGES:
            trainer = client.trainer(damage.__name__)
            assert trainer.info().step == 2
            assert_same_bits(trainer.state_dict(), wanted[trainer.name])
            (told,) = [
                line
                for line in server.log.splitlines()
                if f"/{trainer.name}/" in line and file in line
            ]
            assert "skipped" in told
            # The damaged one does not block new ones.
            step(trainer, 2)
            assert trainer.save_checkpoint().step == 3
            assert trainer.restore_checkpoint().step == 3


def test_a_history_makes_up_for_a_damaged_checkpoint(tmp_path: Path) -> None:
    """The operations before the newest checkpoint are applied to an older one."""
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        trainer = create(client, journal_history_days=1)
        step(trainer, 0, 1)
        trainer.save_checkpoint()
        step(trainer, 2)
        saved = trainer.save_checkpoint()
        step(trainer, 3)
        wanted = trainer.state_dict()
        server.kill()
        flip_a_bit(server.checkpoints(trainer.name) / saved.name)
        server.start()
        assert trainer.info().step == 4
        assert_same_bits(trainer.state_dict(), wanted)


def test_checkpoint_of_a_newer_server_is_not_skipped(tmp_path: Path) -> None:
    """Resuming from an older one would undo the newer server's work."""
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        trainer = create(client)
        step(trainer, 0)
        saved = trainer.save_checkpoint()
        create(client, "other")
        server.kill()
        make_newer(server.checkpoints("noisy") / saved.name)
        server.start()
        assert [(info.name, info.on_disk) for info in client.trainers()] == [
            ("noisy", True),
            ("other", False),
        ]
        assert "format_version 3" in server.log
        with pytest.raises(grpc.RpcError) as caught:
            restore(server, "noisy")
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "format_version 3" in caught.value.details()
        # Its name stays reserved, so the newer server's work is not lost.
        with pytest.raises(braid.AlreadyExists, match="already exists"):
            create(client)


def replace_model(directory: Path, sizes: tuple[int, ...] | None) -> None:
    """Replaces the model by a chain of these sizes; None: by NormAndDropout with other classes."""
    module = durable.NormAndDropout() if sizes is None else models.Chain(*sizes)
    if sizes is None:
        module.layers[4] = nn.Linear(32, 3)
    shutil.rmtree(directory)
    models.export(directory, module, inputs=[torch.zeros(1, durable.FEATURES)])


@pytest.mark.parametrize("sizes", [None, (durable.FEATURES, 7, 5)], ids=["shapes", "names"])
def test_replacing_a_model_does_not_change_its_trainer(
    tmp_path: Path, sizes: tuple[int, ...] | None
) -> None:
    """Not even if its version's folder contains another model."""
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        trainer, twin = create(client), create(client, "twin")
        for each in (trainer, twin):
            step(each, 0, 1)
        trainer.save_checkpoint()
        step(twin, 2)
        server.stop()
        replace_model(server.repository / "noisy", sizes)
        server.start()
        step(trainer, 2)
        assert_same_bits(trainer.state_dict(), twin.state_dict())


@pytest.mark.parametrize("change", ["optimizer", "model"])
def test_checkpoint_of_another_trainer_is_rejected(tmp_path: Path, change: str) -> None:
    durable.export_noisy(tmp_path / "models/other")
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        model = "other" if change == "model" else "noisy"
        theirs = client.create_trainer(model, name="theirs", loss="cross_entropy", optimizer=ADAM)
        step(theirs, 0, 1)
        saved = theirs.save_checkpoint()
        mine = create(client, "mine", optimizer=SGD if change == "optimizer" else ADAM)
        server.stop()
        shutil.copytree(
            server.checkpoints("theirs") / saved.name, server.checkpoints("mine") / saved.name
        )
        server.start()
        assert [(info.name, info.on_disk) for info in client.trainers()] == [
            ("mine", True),
            ("theirs", False),
        ]
        failed = "trainer 'mine': cannot be restored"
        (line,) = [line for line in server.log.splitlines() if failed in line]
        assert ("optimizer 'Adam'" if change == "optimizer" else "model 'other'") in line
        with pytest.raises(grpc.RpcError) as caught:
            restore(server, "mine")
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        restore(server, "mine", "step-000000000-sequence-000000000")
        assert mine.sync().step == 0
        step(mine, 0)


@contextmanager
def full_disk(server: Server, most: int) -> Iterator[None]:
    """Limits the size of files that the server writes to `most` bytes."""
    pid = server.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def test_training_continues_when_the_disk_is_full(tmp_path: Path, format: str) -> None:
    """Saving fails, the old checkpoint stays, and training continues, also in the background."""
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        trainer = create(client, checkpoint_every=1, journal="none")
        saved = trainer.save_checkpoint()
        twin = create(client, "twin")
        before = sorted(server.checkpoints("noisy").iterdir())
        with full_disk(server, 4 << 10):  # The weights are larger, the server's log is not.
            step(trainer, 0, 1, 2)
            with pytest.raises(braid.ResourceExhausted) as caught:
                trainer.save_checkpoint()
            assert "weights.safetensors" in caught.value.message
            assert trainer.list_checkpoints() == [saved]
            assert trainer.info().durable_sequence == 0
            assert sorted(server.checkpoints("noisy").iterdir()) == before
            assert trainer.publish() == 2
            with pytest.raises(braid.DataLoss, match="version 3 .* not written: .*model.pt"):
                trainer.publish(wait_durable=True)
            served = client.list_versions("noisy")[-1]
            assert (served.version, served.serving, served.durability) == (3, True, "failed")
            assert "model.pt" in served.durability_reason
            assert "version 3 is served, but was not written to the data directory" in server.log
            with pytest.raises(braid.ResourceExhausted):
                create(client, "unborn")
            assert [info.name for info in client.trainers()] == ["noisy", "twin"]
        # The versions that were not written left no files.
        assert trainer.publish(wait_durable=True) == 4
        assert [path.name for path in (server.data / "models/noisy").iterdir()] == ["4"]
        assert trainer.save_checkpoint().sequence == 6
        create(client, "unborn")
        step(twin, 0, 1, 2)
        assert_same_bits(trainer.state_dict(), twin.state_dict())
        server.start_again()
        assert client.trainer("noisy").info().step == 3


def test_trainer_stops_while_its_journal_cannot_be_written(tmp_path: Path, format: str) -> None:
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        trainer, twin = create(client), create(client, "twin")
        step(trainer, 0, 1)
        with full_disk(server, 3 << 10):
            with pytest.raises(braid.Unavailable, match="journal cannot be written.*segment-"):
                step(trainer, 2)
            stopped = trainer.state_dict()
            with pytest.raises(braid.Unavailable):
                step(trainer, 2)
            assert_same_bits(trainer.state_dict(), stopped)
            assert trainer.info().durable_sequence == 2
        step(trainer, 2, 3)
        step(twin, 0, 1, 2, 3)
        assert_same_bits(trainer.state_dict(), twin.state_dict())
        server.start_again()
        assert_same_bits(client.trainer("noisy").state_dict(), twin.state_dict())


def test_data_directory_is_locked_by_one_server(server: DurableServer) -> None:
    done = run_to_exit(
        f"--model_repository={server.repository}",
        f"--data_dir={server.data}",
        "--devices=cpu*1",
        "--grpc_port=0",
        "--metrics_port=0",
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--data_dir" in line and str(server.data) in line and "another" in line


def test_checkpoints_need_a_data_directory(tmp_path: Path) -> None:
    with durable.serving(tmp_path, with_data=False) as server, durable.connect(server) as client:
        for promise in ({"checkpoint_every": 1}, {"idle_timeout": 1.0}):
            with pytest.raises(braid.InvalidArgument, match="--data_dir"):
                create(client, **promise)
        trainer = create(client)
        step(trainer, 0, 1)
        for call in (
            trainer.save_checkpoint,
            trainer.list_checkpoints,
            trainer.restore_checkpoint,
        ):
            with pytest.raises(braid.FailedPrecondition, match="--data_dir"):
                call()
        assert (trainer.publish(), trainer.info().durable_sequence) == (2, 0)
        server.start_again(signal.SIGTERM)
        assert client.trainers() == []
        with pytest.raises(braid.NotFound):
            step(trainer, 2)
