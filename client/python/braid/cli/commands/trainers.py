"""`braid trainers`: the trainers on the server."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from braid.cli import options, settings
from braid.cli.options import POSITIVE, Flags, option, pass_flags
from braid.cli.output import (
    bytes_text,
    count_text,
    print_json,
    print_line,
    print_table,
    time_text,
)

if TYPE_CHECKING:
    import braid
    from braid.results import DeviceMemory, RecordedOperation, ReplayReport

_STATE = re.compile(r"([^@]+)@(\d+)")
_RANGE = re.compile(r"([^@]+)(?:@(\d+)?\.\.(\d+)?)?")


def _parse_state(text: str) -> tuple[str, int]:
    """Returns the parts of "NAME@STEP"."""
    found = _STATE.fullmatch(text)
    if found is None:
        raise click.UsageError(f"TRAINER: {text!r} (expected NAME@STEP, for example digits@1200)")
    return found[1], int(found[2])


def _parse_range(text: str) -> tuple[str, int | None, int | None]:
    """Returns the parts of "NAME", "NAME@A..B", "NAME@A.." or "NAME@..B"."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise click.UsageError(
            f"TRAINER: {text!r} (expected NAME or NAME@A..B, for example digits@100..200)"
        )
    first, last = (None if number is None else int(number) for number in found.groups()[1:])
    return found[1], first, last


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
    help="List the trainers of the server: where each stands, and its memory. Subcommands list a "
    "trainer's history, fork, restore, replay or delete it.",
    short_help="List the trainers; history, fork, restore, replay or delete one",
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


@command.command(
    "history",
    help="List the operations in the trainer's journal: each step with its loss and its batch. "
    "TRAINER is NAME, or NAME@A..B for steps A to B, inclusive; A or B may be left out.",
)
@click.argument("trainer")
@option("--limit", type=POSITIVE, metavar="N", help="Only the newest N operations")
@pass_flags
def history(flags: Flags, trainer: str, limit: int | None) -> None:
    name, first, last = _parse_range(trainer)
    with settings.connect(flags) as client:
        operations = client.trainer(name).history(first, last, limit=limit)
    if flags.json:
        print_json({"operations": [_operation_json(operation) for operation in operations]})
        return
    several = len({operation.line for operation in operations}) > 1
    header = ("step", "sequence", "operation", "loss", "lr", "gradient norm", "batch", "time")
    rows = [
        (
            _text(operation.step),
            str(operation.sequence),
            _kind_text(operation),
            _text(operation.loss),
            _text(operation.lr),
            _text(operation.gradient_norm),
            operation.batch_id,
            time_text(operation.time),
        )
        for operation in operations
    ]
    if several:
        lines = ("line", *(str(operation.line) for operation in operations))
        print_table([(line, *row) for line, row in zip(lines, (header, *rows), strict=True)])
    else:
        print_table([header, *rows])


@command.command(
    "fork",
    help="Create trainer NEW_NAME from the state of TRAINER, now (NAME) or at a step (NAME@STEP).",
)
@click.argument("trainer")
@click.argument("new_name")
@pass_flags
def fork(flags: Flags, trainer: str, new_name: str) -> None:
    name, step = _parse_state(trainer) if "@" in trainer else (trainer, None)
    with settings.connect(flags) as client:
        made = client.trainer(name).fork(new_name, step=step).info()
    if flags.json:
        print_json({"trainer": made.name, "step": made.step, "sequence": made.applied_sequence})
    else:
        print_line(
            f"{made.name}: a copy of {name} at step {made.step}, sequence {made.applied_sequence}"
        )


@command.command(
    "restore",
    help="Restore a trainer to its state at a step. Later operations are undone. TRAINER is "
    "NAME@STEP.",
)
@click.argument("trainer")
@option("--yes", is_flag=True, help="Restore without asking for confirmation")
@pass_flags
def restore(flags: Flags, trainer: str, yes: bool) -> None:
    name, step = _parse_state(trainer)
    with settings.connect(flags) as client:
        handle = client.trainer(name)
        if not yes and sys.stdin.isatty():
            now = handle.info().step
            question = f"Restore trainer {name} from step {now} to step {step}? This undoes later steps."
            click.confirm(question, abort=True, err=True)
        restored = handle.restore_checkpoint(step=step)
    if flags.json:
        print_json({
            "trainer": name, "step": restored.step, "sequence": restored.applied_sequence
        })  # fmt: skip
    else:
        print_line(f"{name}: at step {restored.step}, sequence {restored.applied_sequence}")


@command.command(
    "replay",
    help="Recompute steps from a checkpoint and the journal, and compare the results, and the "
    "checkpoints in the range, bit for bit. TRAINER is NAME, or NAME@A..B for steps A to B, "
    "inclusive; A or B may be left out. Exits with 1 if something differs.",
)
@click.argument("trainer")
@pass_flags
def replay(flags: Flags, trainer: str) -> None:
    name, first, last = _parse_range(trainer)
    timeout = math.inf if flags.timeout is None else flags.timeout
    with settings.connect(flags) as client:
        report = client.trainer(name).replay(first, last, timeout=timeout)
    if flags.json:
        print_json(dataclasses.asdict(report))
    else:
        _print_report(name, report)
    if report.difference is not None:
        sys.exit(1)


def _print_report(name: str, report: ReplayReport) -> None:
    compared = (
        f"{count_text(report.operations, 'operation')} and "
        f"{count_text(report.checkpoints, 'checkpoint')} compared"
    )
    print_line(f"{name}: steps {report.first_step} to {report.last_step}, {compared}")
    difference = report.difference
    if difference is None:
        print_line("recorded and replayed results are equal, bit for bit")
    else:
        batch = f", batch {difference.batch_id}" if difference.batch_id else ""
        print_line(f"step {difference.step}, sequence {difference.sequence}{batch}: differs")
        if difference.checkpoint:
            print_line(f"  checkpoint {difference.checkpoint}: tensor {difference.recorded} differs")
        else:
            print_line(f"  recorded {difference.recorded}")
            print_line(f"  replayed {difference.replayed}")
    if report.recorded_with != report.replayed_with:
        print_line(f"recorded with {report.recorded_with}")
        print_line(f"replayed with {report.replayed_with}; small differences are expected")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _kind_text(operation: RecordedOperation) -> str:
    if operation.error:
        return f"{operation.kind}, failed: {operation.error}"
    if operation.published is not None:
        model, version = operation.published
        return f"{operation.kind} {model} {version}"
    return f"{operation.kind}, skipped" if operation.skipped else operation.kind


def _operation_json(operation: RecordedOperation) -> dict[str, Any]:
    return {**dataclasses.asdict(operation), "time": operation.time.timestamp()}


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
