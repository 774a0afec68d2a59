"""`braid rollback`: serves an older version of a model again."""

from __future__ import annotations

import click

from braid.cli import options, settings
from braid.cli.options import Flags, Number, pass_flags
from braid.cli.output import print_json, print_line


@options.command("rollback", help="Serve an older version of a model again.")
@click.argument("model")
@click.argument("version", type=Number(int, 1, (1 << 63) - 1))
@pass_flags
def command(flags: Flags, model: str, version: int) -> None:
    with settings.connect(flags) as client:
        previous = client.rollback(model, version)
    if flags.json:
        print_json({"model": model, "version": version, "previous_version": previous})
    else:
        print_line(f"{model} serves version {version}, before version {previous}")
