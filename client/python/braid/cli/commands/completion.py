"""`braid completion`: scripts that complete the command in a shell."""

from __future__ import annotations

import click
from click import shell_completion

from braid.cli import options
from braid.cli.options import Word

EPILOG = """\
\b
Examples:
  eval "$(braid completion bash)"        in ~/.bashrc
  eval "$(braid completion zsh)"         in ~/.zshrc
  braid completion fish | source         in ~/.config/fish/config.fish
"""


@options.command(
    "completion", help="Print a script that completes braid in a shell.", epilog=EPILOG
)
@click.argument("shell", metavar="bash|zsh|fish", type=Word(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "braid", "_BRAID_COMPLETE").source())
