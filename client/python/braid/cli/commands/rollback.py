"""`braid rollback`: serves an older version of a model again."""

from __future__ import annotations

import click

from braid.cli import options, settings
from braid.cli.commands.models import before_text, pin_text
from braid.cli.options import Flags, Number, pass_flags
from braid.cli.output import print_json, print_line


@options.command(
    "rollback",
    help="Serve an older version of a model again, and pin it unless it is the newest.",
    short_help="Serve an older version of a model again",
)
@click.argument("model")
@click.argument("version", type=Number(int, 1, (1 << 63) - 1))
@pass_flags
def command(flags: Flags, model: str, version: int) -> None:
    from braid._protocol import TRAINING

    method = TRAINING["Rollback"]
    request = method.request(model=model, version=version)
    with settings.connect(flags) as client:
        reply = client._channel.call(method, request, attempts=1)
    if flags.json:
        print_json({
            "model": model,
            "version": version,
            "previous_version": reply.previous_version,
            "pinned": reply.pinned,
        })  # fmt: skip
        return
    before = before_text(version, reply.previous_version)
    print_line(f"{model} serves version {version}{before}")
    if reply.pinned:
        print_line(pin_text(model, version))
