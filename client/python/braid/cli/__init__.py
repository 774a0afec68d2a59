"""The `braid` command: `main` runs it. Each command is a module of `braid.cli.commands`."""

from braid.cli.app import main

__all__ = ["main"]
