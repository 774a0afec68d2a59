"""`braid config`: the configuration file, and the settings that result from it."""

from __future__ import annotations

from braid.cli import options, settings
from braid.cli.options import Flags, pass_flags
from braid.cli.output import print_json, print_line, print_table

EPILOG = """\
\b
Example of a file:
  profile = "lab"             # the profile to use by default
\b
  [profiles.lab]
  server = "gpu1.example.org:8001"
  tls = true
  ca = "lab-ca.pem"           # relative to the file
  token_file = "~/lab.token"
"""
_HIDDEN = "(hidden)"

command = options.Group(
    "config",
    help="Show the configuration file and the settings in use.\n\n"
    "A profile in the file sets server, timeout, tls, ca, cert, key, token_file or token; --profile "
    "or BRAID_PROFILE selects it. Options and environment variables come before the profile.",
    short_help="Show the settings in use",
    epilog=EPILOG,
)


@command.command("path", help="Print the path of the configuration file.")
@pass_flags
def path(flags: Flags) -> None:
    found = settings.config_path()
    if flags.json:
        print_json({"path": str(found), "exists": found.exists()})
    else:
        print_line(str(found))


@command.command("show", help="Print the settings in use, and where each comes from.")
@pass_flags
def show(flags: Flags) -> None:
    loaded = settings.load(flags)
    shown = {
        key: settings.Value(_HIDDEN, value.source) if key == "token" else value
        for key, value in loaded.values.items()
    }
    if flags.json:
        print_json({
            "path": str(settings.config_path()),
            "profile": loaded.profile,
            "settings": {
                key: {"value": value.value, "source": value.source} for key, value in shown.items()
            },
        })  # fmt: skip
        return
    file = settings.config_path()
    if loaded.profile:
        print_line(f"profile {loaded.profile} of {file}")
    else:
        print_line(f"no profile ({file} {'selects none' if file.exists() else 'does not exist'})")
    print_table([
        ("setting", "value", "source"),
        *((key, _text(value.value), value.source) for key, value in shown.items()),
    ])  # fmt: skip


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
