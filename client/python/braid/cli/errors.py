"""Errors of the command, and how they are printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from braid.cli.output import printable

if TYPE_CHECKING:
    from braid.errors import BraidError

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130


class Failure(click.ClickException):
    """The server or the model rejected the call, or a result could not be written: exit code 1."""

    exit_code = FAILED


def usage(field: str, problem: str, expected: str) -> click.UsageError:
    """An error of the command line or of a file that it names: exit code 2."""
    return click.UsageError(f"{field}: {problem} ({expected})")


def rejected(error: BraidError) -> Failure:
    """Returns a Failure with the error's message and status code on one line."""
    return Failure(f"{printable(error.message)} ({error.code.name})")


def report(error: click.ClickException) -> int:
    """Prints `error` on stderr and returns the exit code."""
    lines = describe(error).split("\n")
    click.echo(f"braid: {chr(10).join(map(printable, lines))}", err=True)
    return error.exit_code


def describe(error: click.ClickException) -> str:
    """Returns the message, in the form `<field>: <problem> (<what is expected>)`."""
    if not isinstance(error, click.UsageError):
        return error.message
    context = error.ctx
    see = f"see {context.command_path if context else 'braid'} --help"
    if isinstance(error, click.NoSuchOption):
        near = [f"did you mean {' or '.join(error.possibilities)}?"] if error.possibilities else []
        return f"{error.option_name}: unknown option ({'; '.join([*near, see])})"
    if isinstance(error, click.MissingParameter):
        return f"{_name(error)}: missing ({see})"
    if isinstance(error, click.BadOptionUsage):
        problem = re.sub(r"^Option '.*?' |\.$", "", error.message)
        return f"{error.option_name}: {problem} ({see})"
    if isinstance(error, click.BadParameter):
        return f"{_name(error)}: {error.message}"
    extra = re.match(r"Got unexpected extra arguments? \((.*)\)", error.message)
    if extra:
        return f"{extra[1]}: unexpected argument ({see})"
    return error.message


def of_file(error: OSError) -> str:
    """Returns what a failed file operation says, without Python's error number."""
    name = error.filename if isinstance(error.filename, str) else "stdout"
    return f"{name}: {error.strerror or error}"


def _name(error: click.BadParameter) -> str:
    if error.param is None:
        return str(error.param_hint)
    if isinstance(error.param, click.Argument):
        return error.param.make_metavar(error.ctx) if error.ctx else error.param.name or ""
    return max(error.param.opts, key=len)
