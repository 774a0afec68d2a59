"""Command line `braid` of the Python package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from braid._commands import check, export
from braid._export import ExportError
from braid._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 for success, 1 for failure, 2 for a wrong command line.

    arguments: arguments after the program name; default: those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="braid", description="Export and check models for a Braid server."
    )
    parser.add_argument("--version", action="version", version=f"braid-client {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    export.add_to(commands)
    check.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except export.UsageError as error:
        options.parser.error(str(error))  # Exits with status 2.
    except ExportError as error:
        print(f"{options.parser.prog}: {error}", file=sys.stderr)
        return 1
