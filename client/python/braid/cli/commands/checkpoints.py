"""`braid checkpoints`: lists, saves and restores the checkpoints of a trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from braid.cli import options, settings
from braid.cli.options import Flags, pass_flags
from braid.cli.output import bytes_text, print_json, print_line, print_table, time_text

if TYPE_CHECKING:
    from braid.results import Checkpoint

command = options.Group("checkpoints", help="List, save or restore the checkpoints of a trainer.")


@command.command("list", help="List the checkpoints, the oldest first.")
@click.argument("trainer")
@pass_flags
def list_checkpoints(flags: Flags, trainer: str) -> None:
    with settings.connect(flags) as client:
        checkpoints = client.trainer(trainer).list_checkpoints()
    if flags.json:
        print_json({"checkpoints": [_as_json(checkpoint) for checkpoint in checkpoints]})
        return
    print_table([
        ("checkpoint", "step", "sequence", "size", "written"),
        *(
            (
                checkpoint.name,
                str(checkpoint.step),
                str(checkpoint.sequence),
                bytes_text(checkpoint.bytes),
                time_text(checkpoint.created),
            )
            for checkpoint in checkpoints
        ),
    ])  # fmt: skip


@command.command("save", help="Write a checkpoint, and wait until it is durable.")
@click.argument("trainer")
@pass_flags
def save(flags: Flags, trainer: str) -> None:
    with settings.connect(flags) as client:
        checkpoint = client.trainer(trainer).save_checkpoint()
    _report("saved", checkpoint, flags.json)


@command.command(
    "restore",
    help="Take a trainer back to a checkpoint; also brings back one that has expired. "
    "CHECKPOINT is the newest unless you name one.",
)
@click.argument("trainer")
@click.argument("checkpoint", required=False, default="")
@pass_flags
def restore(flags: Flags, trainer: str, checkpoint: str) -> None:
    from braid._protocol import TRAINING
    from braid._replies import checkpoint as from_proto

    method = TRAINING["RestoreCheckpoint"]
    with settings.connect(flags) as client:
        request = method.request(trainer=trainer, checkpoint=checkpoint)
        restored = from_proto(client._channel.call(method, request).checkpoint)
    _report("restored", restored, flags.json)


def _report(done: str, checkpoint: Checkpoint, json: bool) -> None:
    if json:
        print_json(_as_json(checkpoint))
        return
    print_line(
        f"{done} {checkpoint.name}: step {checkpoint.step}, sequence {checkpoint.sequence}, "
        f"{bytes_text(checkpoint.bytes)}"
    )


def _as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint.name,
        "step": checkpoint.step,
        "sequence": checkpoint.sequence,
        "bytes": checkpoint.bytes,
        "created": checkpoint.created.timestamp(),
    }
