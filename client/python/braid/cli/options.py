"""Building blocks of the commands' options: types, groups in the help, and the global options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from braid.cli import errors

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_GLOBAL = "Global options"
_OTHER = "Options"


@dataclass
class Flags:
    """Values of the global options as given on the command line. None: not given."""

    server: str | None = None
    json: bool = False
    timeout: float | None = None
    tls: bool | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    profile: str | None = None


pass_flags = click.make_pass_decorator(Flags, ensure=True)


class Number(click.ParamType):
    """A number within limits, both of which are allowed."""

    name = "number"

    def __init__(
        self, kind: type[int] | type[float], least: float | None = None, most: float | None = None
    ) -> None:
        self._kind, self._least, self._most = kind, least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        try:
            number = self._kind(value) if "_" not in str(value) else None
        except ValueError:
            number = None
        if number is None or number != number:
            self.fail(f"invalid value {value!r} (expected {self._expected()})", param, ctx)
        if (self._least is not None and number < self._least) or (
            self._most is not None and number > self._most
        ):
            self.fail(f"{value} is out of range (expected {self._expected()})", param, ctx)
        return number

    def _expected(self) -> str:
        kind = "a whole number" if self._kind is int else "a number"
        if self._least is not None and self._most is not None:
            return f"{kind} from {self._least} to {self._most}"
        return kind if self._least is None else f"{kind}, {self._least} or more"


POSITIVE = Number(int, 1)
FLOAT = Number(float)


class Word(click.Choice[str]):
    """One of some words, in any case."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words, case_sensitive=False)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"invalid value {value!r} (expected {', '.join(map(str, self.choices))})"


class Option(click.Option):
    """An option that the help lists under the title `group`.

    decides_trainer: has a meaning only where `braid train` creates a trainer.
    """

    def __init__(
        self, *arguments: Any, group: str = _OTHER, decides_trainer: bool = False, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.group = group
        self.decides_trainer = decides_trainer


class _GlobalOption(Option):
    """An option of every command. It stores its value in the context's Flags."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, group=_GLOBAL, expose_value=False, callback=_store, **options)


def given_on_command_line(ctx: click.Context, param: click.Parameter) -> bool:
    source = ctx.get_parameter_source(param.name or "")
    return source is click.core.ParameterSource.COMMANDLINE


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if given_on_command_line(ctx, param):
        setattr(ctx.ensure_object(Flags), param.name or "", value)


def _global_options() -> list[click.Parameter]:
    path = click.Path()
    return [
        _GlobalOption(
            ["--server"], metavar="HOST:PORT",
            help="Address of the server [default: BRAID_SERVER, or 127.0.0.1:8001]",
        ),
        _GlobalOption(["--json"], is_flag=True, help="Print JSON, one object per line"),
        _GlobalOption(
            ["--timeout"], type=Number(float, 0), metavar="SECONDS",
            help="Limit for each call [default: 0, no limit]",
        ),
        _GlobalOption(
            ["--tls/--no-tls"], default=None,
            help="Use TLS; trust the system's authorities unless --ca is given",
        ),
        _GlobalOption(
            ["--ca"], type=path, metavar="FILE",
            help="Authorities of the server, in PEM; needs --tls [default: BRAID_CA]",
        ),
        _GlobalOption(
            ["--cert"], type=path, metavar="FILE",
            help="Certificate of the client, in PEM; needs --tls and --key",
        ),
        _GlobalOption(
            ["--key"], type=path, metavar="FILE", help="Key of that certificate, in PEM"
        ),
        _GlobalOption(
            ["--token_file"], type=path, metavar="FILE",
            help="File with the token [default: BRAID_TOKEN holds the token]",
        ),
        _GlobalOption(
            ["--profile"], metavar="NAME",
            help="Profile of the configuration file [default: BRAID_PROFILE]",
        ),
    ]  # fmt: skip


class _Common(click.Command):
    """Accepts the global options, and lists options by their groups in the help."""

    def __init__(
        self, *arguments: Any, shows_global_options: bool = False, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self._shows_global_options = shows_global_options
        self.params += _global_options()

    def get_short_help_str(self, limit: int = 45) -> str:
        """Returns the line in a list of commands: a phrase without a full stop."""
        text = super().get_short_help_str(limit)
        return text if text.endswith("...") else text.removesuffix(".")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            group = getattr(param, "group", _OTHER)
            shown = self._shows_global_options or group != _GLOBAL
            if record and shown and isinstance(param, click.Option):
                groups.setdefault(group, []).append(record)
        groups[_OTHER] = groups.pop(_OTHER)  # Comes last: it has --help.
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if not self._shows_global_options:
            formatter.write_paragraph()
            formatter.write_text("Global options, such as --server and --json: see braid --help.")


class Command(_Common):
    """A command."""


class Group(_Common, click.Group):
    """A command that has commands of its own."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            known = ", ".join(self.list_commands(ctx))
            raise errors.usage(args[0], "unknown command", f"expected one of: {known}")
        return super().resolve_command(ctx, args)


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function."""
    return click.command(name, cls=Command, **settings)


def option(*arguments: Any, **settings: Any) -> Callable[[Any], Any]:
    """Adds an Option to a command."""
    return click.option(*arguments, cls=Option, **settings)
