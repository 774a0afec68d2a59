"""The command `braid`: what of the package is of use in a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from braid._commands import check, export
from braid._export import ExportError
from braid._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if it was done, 1 if not, 2 if the command line makes no sense.

    arguments: those after the command's name; default: the process's.
    """
    parser = argparse.ArgumentParser(prog="braid", description="Models for a Braid server.")
    parser.add_argument("--version", action="version", version=f"braid-client {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    export.add_to(commands)
    check.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except export.UsageError as error:
        options.parser.error(str(error))  # Ends with status 2.
    except ExportError as error:
        print(f"{options.parser.prog}: {error}", file=sys.stderr)
        return 1
