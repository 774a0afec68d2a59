"""The top level of the command: finds the commands, runs one, and turns errors into exit codes."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import click

from braid._version import __version__
from braid.cli import errors
from braid.cli.options import CONTEXT, Flags, Group
from braid.cli.output import printable

# In the order of the help. A command's module is imported when the command is used.
COMMANDS = (
    "infer", "train", "jobs", "data", "trainers", "evaluate", "checkpoints", "download", "rollback",
    "models", "devices", "top", "export", "check", "config", "completion",
)  # fmt: skip
EPILOG = """\
These options may also follow the command. A profile in a configuration file can set them: see braid
config --help.

\b
Exit codes: 0 success; 1 the server or the model rejected the call, or output could not be
written; 2 wrong usage; 130 interrupted.
"""


class _Braid(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"braid.cli.commands.{cmd_name}").command
        return command


@click.group(
    cls=_Braid,
    name="braid",
    context_settings=CONTEXT,
    epilog=EPILOG,
    shows_global_options=True,
    help="Client of a Braid server: inference, training, models and devices.",
)
@click.version_option(__version__, prog_name="braid", message="%(prog)s %(version)s")
def braid() -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code.

    arguments: those after the command's name; default: those of the process.
    """
    # The client's errors say what gRPC would log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # A name from the network may not fit the encoding.
            stream.reconfigure(errors="backslashreplace")
    log, lines = logging.getLogger("braid"), _LogLines(logging.WARNING)
    log.addHandler(lines)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except OSError as error:
        if error.errno != errno.EPIPE:
            return errors.report(errors.Failure(errors.of_file(error)))
        # Nobody reads any more. The interpreter flushes stdout once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.FAILED
    finally:
        log.removeHandler(lines)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = braid.main(arguments, prog_name="braid", standalone_mode=False, obj=Flags())
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return errors.BAD_USAGE
    except click.ClickException as error:
        return errors.report(error)
    except (click.Abort, KeyboardInterrupt):
        return errors.INTERRUPTED
    except (OSError, SystemExit):
        raise
    except Exception as error:  # A user should never see a traceback.
        if os.environ.get("BRAID_TRACEBACK"):
            raise
        text = f"internal error: {type(error).__name__}: {error} (BRAID_TRACEBACK=1 shows where)"
        return errors.report(errors.Failure(text))
    return result if isinstance(result, int) else 0


class _LogLines(logging.Handler):
    """Prints the warnings of the client on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        _show_warning(record.getMessage())


def _show_warning(message: Any, *_: Any) -> None:
    click.echo(f"braid: warning: {printable(str(message))}", err=True)
