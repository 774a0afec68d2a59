"""`braid trainers`: the trainers on the server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from braid.cli import options, settings
from braid.cli.options import Flags, option, pass_flags
from braid.cli.output import bytes_text, print_json, print_line, print_table

if TYPE_CHECKING:
    import braid
    from braid.results import DeviceMemory


def _rates_text(rates: Mapping[str, float]) -> str:
    """Returns "0.1", or with groups "0.1, ^head 0.01"."""
    return ", ".join(f"{group} {rate:g}".lstrip() for group, rate in rates.items())


def _memory_text(memory: Sequence[DeviceMemory]) -> str:
    return ", ".join(
        f"{device.device} {bytes_text(device.current_bytes)} (peak {bytes_text(device.peak_bytes)})"
        for device in memory
    )


@click.group(
    "trainers",
    cls=options.Group,
    invoke_without_command=True,
    help="List the trainers of the server: where each stands, and its memory; or delete one.",
    short_help="List the trainers and their memory, or delete one",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        flags = ctx.ensure_object(Flags)
        with settings.connect(flags) as client:
            _list(client, flags.json)


@command.command("delete", help="Delete a trainer and its checkpoints; published versions stay.")
@click.argument("trainer")
@option("--yes", is_flag=True, help="Delete without asking for confirmation")
@pass_flags
def delete(flags: Flags, trainer: str, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete trainer {trainer} and its checkpoints?", abort=True, err=True)
    with settings.connect(flags) as client:
        client.delete_trainer(trainer)
    if flags.json:
        print_json({"trainer": trainer})
    else:
        print_line(f"{trainer}: deleted")


def _list(client: braid.Client, json: bool) -> None:
    trainers = client.trainers()
    if json:
        print_json({
            "trainers": [
                {
                    "trainer": trainer.name,
                    "model": trainer.model,
                    "base_version": trainer.base_version,
                    "step": trainer.step,
                    "applied_sequence": trainer.applied_sequence,
                    "durable_sequence": trainer.durable_sequence,
                    "skipped": trainer.skipped,
                    "lr": trainer.lr,
                    "lrs": trainer.lrs,
                    "devices": list(trainer.devices),
                    "on_disk": trainer.on_disk,
                    "memory": [
                        {
                            "device": memory.device,
                            "current_bytes": memory.current_bytes,
                            "peak_bytes": memory.peak_bytes,
                        }
                        for memory in trainer.memory
                    ],
                }
                for trainer in trainers
            ]
        })  # fmt: skip
        return
    print_table([
        ("trainer", "model", "step", "applied", "durable", "skipped", "lr", "memory"),
        *(
            (
                trainer.name,
                trainer.model,
                str(trainer.step),
                str(trainer.applied_sequence),
                str(trainer.durable_sequence),
                str(trainer.skipped),
                _rates_text(trainer.lrs),
                "on disk" if trainer.on_disk else _memory_text(trainer.memory),
            )
            for trainer in trainers
        ),
    ])  # fmt: skip
