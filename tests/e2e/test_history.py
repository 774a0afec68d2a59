"""The journal's history: earlier states of a trainer, forks of them, and replays."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
from e2e.support import durable
from e2e.support.durable import DurableServer, assert_same_bits, batch
from e2e.support.server import COMMAND, Server

MIB = 1 << 20


@pytest.fixture(scope="module", params=["torchscript", "pair"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DurableServer]:
    with durable.serving(
        tmp_path_factory.mktemp("history"), format=request.param
    ) as server:
        yield server


@pytest.fixture
def client(server: DurableServer) -> Iterator[braid.Client]:
    with durable.connect(server) as client:
        yield client


def create(client: braid.Client, name: str, **options: object) -> braid.Trainer:
    return client.create_trainer(
        "noisy",
        name=name,
        **{
            "loss": "cross_entropy",
            "optimizer": "AdamW",
            "schedule": {"name": "StepLR", "step_size": 7},
            "clip_grad_norm": 1.0,
            "journal_history_bytes": 64 * MIB,
            **options,
        },
    )


def train(trainer: braid.Trainer, first: int, last: int) -> dict[int, dict]:
    """Makes the steps first + 1 to last. Returns the state after each, by step."""
    states = {}
    for number in range(first, last):
        result = trainer.step(*batch(number), batch_id=f"batch {number}")
        states[result.step] = trainer.state_dict()
    return states


def run_command(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(COMMAND), "--server", server.address, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def stdout_of(server: Server, *arguments: str) -> str:
    run = run_command(server, *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_history_tells_what_each_step_saw(client: braid.Client) -> None:
    trainer = create(client, "told")
    results = [trainer.step(*batch(number), batch_id=f"file-{number}") for number in range(3)]
    trainer.forward_backward(*batch(3), batch_id="half")
    trainer.optim_step(lr=0.25)
    version = trainer.publish()
    history = trainer.history()
    assert [(one.kind, one.batch_id, one.step) for one in history] == [
        ("Step", "file-0", 1),
        ("Step", "file-1", 2),
        ("Step", "file-2", 3),
        ("ForwardBackward", "half", 3),
        ("OptimStep", "", 4),
        ("Publish", "", 4),
    ]
    for result, one in zip(results, history, strict=False):
        assert (one.loss, one.lr, one.gradient_norm) == (
            result.loss,
            result.lr,
            result.gradient_norm,
        )
    assert history[4].lr == 0.25
    assert history[5].published == ("noisy", version)
    assert [one.sequence for one in history] == [1, 2, 3, 4, 5, 6]
    assert sorted(history, key=lambda one: one.time) == history
    assert [one.step for one in trainer.history(2, 3)] == [2, 3, 3]
    assert [one.sequence for one in trainer.history(limit=2)] == [5, 6]


def test_history_shows_the_batch_that_failed(client: braid.Client) -> None:
    trainer = create(client, "spoiled")
    train(trainer, 0, 1)
    inputs, targets = batch(1)
    broken = {name: np.full_like(value, math.nan) for name, value in inputs.items()}
    with pytest.raises(braid.FailedPrecondition):
        trainer.step(broken, targets, batch_id="broken")
    train(trainer, 1, 2)
    failed = [one for one in trainer.history() if one.error]
    assert [(one.batch_id, one.sequence, one.step) for one in failed] == [("broken", 2, None)]
    assert "finite" in failed[0].error
    assert [one.batch_id for one in trainer.history(1, 1)] == ["batch 0", "broken"]
    assert trainer.replay().difference is None


def test_a_fork_stands_where_the_trainer_stood(client: braid.Client) -> None:
    trainer = create(client, "forked")
    states = train(trainer, 0, 4)
    trainer.save_checkpoint()
    states |= train(trainer, 4, 9)
    for step in (2, 4, 7, 9):
        fork = trainer.fork(f"fork-{step}", step=step)
        assert fork.info().step == fork.info().applied_sequence == step
        assert fork.info().options == trainer.info().options
        assert_same_bits(fork.state_dict(), states[step])
        # With the optimizer, the schedule and the numbers for dropout.
        for later, state in train(fork, step, 9).items():
            assert_same_bits(state, states[later])
    # The fork is another trainer, whose own steps have a history.
    assert [one.step for one in client.trainer("fork-7").history()] == [8, 9]
    assert_same_bits(trainer.state_dict(), states[9])
    now = trainer.fork("fork-now")
    trainer.delete()
    assert_same_bits(now.state_dict(), states[9])
    assert_same_bits(now.fork("fork-of-a-fork").state_dict(), states[9])


def test_restore_goes_back_to_any_step(client: braid.Client) -> None:
    trainer = create(client, "restored")
    other = client.trainer("restored")
    states = {0: trainer.state_dict()} | train(trainer, 0, 8)
    for step in (5, 3, 7, 0):
        info = trainer.restore_checkpoint(step=step)
        assert (info.step, info.applied_sequence) == (step, step)
        assert_same_bits(trainer.state_dict(), states[step])
        assert train(trainer, step, 8).keys() == set(range(step + 1, 9))
        assert_same_bits(trainer.state_dict(), states[8])
    with pytest.raises(braid.FailedPrecondition, match="restored"):
        other.step(*batch(8))
    lines = [one.line for one in trainer.history()]
    assert lines == sorted(lines)
    assert len(set(lines)) == 5
    # Another batch: the step that came last counts, and the earlier ones can still be compared.
    trainer.restore_checkpoint(step=6)
    trainer.step(*batch(100))
    wanted = trainer.state_dict()
    assert_same_bits(trainer.fork("last-seventh", step=7).state_dict(), wanted)
    assert_same_bits(trainer.fork("eighth", step=8).state_dict(), states[8])
    # Through the restore.
    report = trainer.replay(4, 7)
    assert (report.operations, report.difference) == (4, None)


def test_replay_finds_no_difference_on_the_same_devices(client: braid.Client) -> None:
    trainer = create(client, "replayed", checkpoint_every=5, checkpoint_keep=0)
    train(trainer, 0, 12)
    trainer.save_checkpoint()
    report = trainer.replay()
    assert (report.first_step, report.last_step, report.operations) == (1, 12, 12)
    assert report.checkpoints >= 2
    assert report.difference is None
    assert report.recorded_with == report.replayed_with
    report = trainer.replay(8, 11)
    assert (report.first_step, report.last_step, report.operations) == (8, 11, 4)
    assert trainer.info().step == 12


def test_history_survives_a_crash(server: DurableServer, client: braid.Client) -> None:
    trainer = create(client, "crashed")
    states = train(trainer, 0, 6)
    server.start_again()
    states |= train(trainer, 6, 9)
    assert [one.step for one in trainer.history()] == list(range(1, 10))
    assert_same_bits(trainer.fork("crashed-4", step=4).state_dict(), states[4])
    assert trainer.replay().difference is None
    server.start_again()
    assert_same_bits(client.trainer("crashed-4").state_dict(), states[4])
    assert_same_bits(trainer.state_dict(), states[9])


def test_unreachable_steps_are_named(client: braid.Client) -> None:
    trainer = create(client, "reached")
    train(trainer, 0, 3)
    for call in (
        lambda: trainer.fork("beyond", step=4),
        lambda: trainer.restore_checkpoint(step=4),
        lambda: trainer.replay(1, 4),
    ):
        with pytest.raises(braid.NotFound, match=r"step: 4 is not available .*steps 1 to 3"):
            call()
    with pytest.raises(braid.InvalidArgument, match="last_step: 2 .expected at least 3"):
        trainer.replay(3, 2)
    with pytest.raises(braid.NotFound, match="first_step: 4 is not available .the last one is 3"):
        trainer.replay(4)
    with pytest.raises(braid.InvalidArgument, match="first_step: 0 .expected at least 1"):
        trainer.replay(0, 2)
    with pytest.raises(braid.AlreadyExists, match="new_name"):
        trainer.fork("reached")
    with pytest.raises(braid.InvalidArgument, match="new_name: invalid trainer name"):
        trainer.fork("a/b")
    with pytest.raises(TypeError, match="batch_id: 5 .expected a string"):
        trainer.step(*batch(3), batch_id=5)
    with pytest.raises(braid.InvalidArgument, match="batch_id: 257 bytes"):
        trainer.step(*batch(3), batch_id="x" * 257)
    assert [info.name for info in client.trainers() if info.name == "beyond"] == []


def test_without_a_journal_there_is_no_history(client: braid.Client) -> None:
    trainer = create(client, "unrecorded", journal="none", journal_history_bytes=None)
    train(trainer, 0, 1)
    for call in (trainer.history, trainer.replay, lambda: trainer.fork("nothing", step=0)):
        with pytest.raises(braid.FailedPrecondition, match="has no journal"):
            call()
    # The current state needs none.
    assert trainer.fork("copy").info().step == 1
    with pytest.raises(braid.InvalidArgument, match="journal_history"):
        create(client, "both", journal="none")


def test_without_a_history_the_journal_begins_at_the_newest_checkpoint(
    client: braid.Client,
) -> None:
    trainer = create(client, "short", journal_history_bytes=None, checkpoint_keep=1)
    train(trainer, 0, 3)
    trainer.save_checkpoint()
    states = train(trainer, 3, 6)
    assert [one.step for one in trainer.history()] == [4, 5, 6]
    assert_same_bits(trainer.fork("short-5", step=5).state_dict(), states[5])
    with pytest.raises(braid.NotFound, match="journal_history"):
        trainer.fork("short-2", step=2)


def test_the_oldest_operations_leave_a_history_of_limited_size(client: braid.Client) -> None:
    trainer = create(client, "limited", journal_history_bytes=20_000, checkpoint_keep=2)
    for step in range(0, 60, 2):
        train(trainer, step, step + 2)
        trainer.save_checkpoint()
    history = trainer.history()
    assert history[0].step is not None and 2 < history[0].step < 58
    assert history[-1].step == 60
    assert len(trainer.list_checkpoints()) <= 2 + 16
    assert trainer.replay().difference is None
    with pytest.raises(braid.NotFound, match="journal_history"):
        trainer.restore_checkpoint(step=1)


def test_replay_on_other_devices_tells_the_first_difference(tmp_path: Path) -> None:
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        trainer = create(client, "moved", optimizer={"name": "SGD", "lr": 0.5})
        train(trainer, 0, 30)
        server.stop()
        server.replace_flag("--devices", "cpu*1")
        server.start()
        moved = client.trainer("moved")
        with pytest.raises(braid.FailedPrecondition, match="cannot be recomputed exactly.*cpu:1"):
            moved.fork("inexact", step=20)
        with pytest.raises(braid.FailedPrecondition, match="cannot be recomputed exactly"):
            moved.restore_checkpoint(step=20)
        # Checkpoints have the exact state.
        assert moved.fork("exact", step=30).info().step == 30
        report = moved.replay()
        assert report.recorded_with != report.replayed_with
        assert "cpu:1" in report.recorded_with
        assert report.difference is not None
        assert report.difference.batch_id == f"batch {report.difference.sequence - 1}"
        recorded = json.loads(report.difference.recorded)
        replayed = json.loads(report.difference.replayed)
        assert recorded != replayed
        assert recorded["step"] == replayed["step"] == report.difference.step


def test_commands_find_and_undo_a_bad_batch(server: DurableServer, client: braid.Client) -> None:
    trainer = create(client, "searched")
    states = train(trainer, 0, 5)
    listed = stdout_of(server, "trainers", "history", "searched", "--limit", "2").splitlines()
    assert listed[0].split() == [
        "step", "sequence", "operation", "loss", "lr", "gradient", "norm", "batch", "time"
    ]  # fmt: skip
    assert [line.split()[0] for line in listed[1:]] == ["4", "5"]
    assert "batch 4" in listed[2]
    forked = stdout_of(server, "trainers", "fork", "searched@3", "searched-again")
    assert forked == "searched-again: a copy of searched at step 3, sequence 3\n"
    assert_same_bits(client.trainer("searched-again").state_dict(), states[3])
    replayed = stdout_of(server, "trainers", "replay", "searched@2..4")
    assert replayed == (
        "searched: steps 2 to 4, 3 operations and 0 checkpoints compared\n"
        "recorded and replayed results are equal, bit for bit\n"
    )
    restored = stdout_of(server, "trainers", "restore", "searched@2", "--yes")
    assert restored == "searched: at step 2, sequence 2\n"
    report = json.loads(stdout_of(server, "--json", "trainers", "history", "searched@1..1"))
    assert [one["batch_id"] for one in report["operations"]] == ["batch 0"]
    wrong = run_command(server, "trainers", "restore", "searched")
    assert wrong.returncode == 2
    assert "NAME@STEP" in wrong.stderr
