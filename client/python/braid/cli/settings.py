"""The server to call and how: from the command line, the environment and a profile, in this order. A
profile that is chosen on the command line comes before the environment.

    profile = "lab"             # the profile that is used by default

    [profiles.lab]
    server = "gpu1.example.org:8001"
    timeout = 60                # seconds
    tls = true
    ca = "lab-ca.pem"           # relative to this file
    token_file = "~/lab.token"
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braid.cli import errors
from braid.cli.options import Flags

if TYPE_CHECKING:
    import braid

_WORD = re.compile("[!-~]+")
_PATHS = ("ca", "cert", "key", "token_file")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "server": (str,), "timeout": (int, float), "tls": (bool,), "ca": (str,), "cert": (str,),
    "key": (str,), "token": (str,), "token_file": (str,),
}  # fmt: skip
_TYPE_NAMES = {str: "text", int: "a number", bool: "true or false"}
_VARIABLES = {"server": "BRAID_SERVER", "ca": "BRAID_CA", "token": "BRAID_TOKEN"}
_DEFAULTS = {"server": "127.0.0.1:8001", "timeout": 0, "tls": False}
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class Value:
    """A setting. source: what it is called where it comes from, for messages."""

    value: Any
    source: str


@dataclass(frozen=True)
class Settings:
    """All settings, and the profile that is in use, if one is. Paths are absolute or as given."""

    profile: str | None
    values: Mapping[str, Value]

    def get(self, key: str) -> Any:
        return self.values[key].value if key in self.values else None


def config_path() -> Path:
    """Returns the path of the configuration file, whether or not it exists."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "braid" / "config.toml"


def load(flags: Flags) -> Settings:
    """Returns the settings. UsageError if the configuration file or its profile is wrong."""
    name, profile = _profile(flags.profile or os.environ.get("BRAID_PROFILE"))
    values = {key: Value(value, "default") for key, value in _DEFAULTS.items()}
    values.update(profile)
    chosen = set(profile) if flags.profile else set()
    if "token_file" in chosen:
        chosen.add("token")
    for key, variable in _VARIABLES.items():
        if os.environ.get(variable) is not None and key not in chosen:
            values[key] = Value(os.environ[variable], variable)
    for field in fields(flags):
        given = getattr(flags, field.name)
        if field.name in _TYPES and given is not None:
            values[field.name] = Value(given, f"--{field.name}")
    # A token is given in one way: the one that comes first.
    if "token" in values and "token_file" in values:
        by_flag = values["token_file"].source == "--token_file"
        del values["token" if by_flag else "token_file"]
    return Settings(name, values)


@contextlib.contextmanager
def connect(flags: Flags) -> Iterator[braid.Client]:
    """A client of the server. Raises Failure for what the server rejects."""
    settings = load(flags)
    security = _security(settings)
    address, timeout = settings.get("server"), settings.get("timeout") or None

    import braid
    from braid._protocol import INFERENCE

    try:
        with braid.connect(address, timeout=timeout, **security) as client:
            live = INFERENCE["ServerLive"]
            seconds = min(timeout or _CONNECT_SECONDS, _CONNECT_SECONDS)
            try:
                client._channel.call(live, live.request(), seconds, attempts=1)
            except (braid.Unavailable, braid.DeadlineExceeded) as error:
                reason = error.message.removeprefix(f"{address}: ")
                raise errors.Failure(
                    f"server: no answer from {address}: {reason} ({error.code.name})"
                ) from None
            yield client
    except braid.Unauthenticated as error:
        if security["token"] is None and "TOKEN" in error.message:
            raise errors.Failure(
                f"{error.message}; set --token_file or BRAID_TOKEN ({error.code.name})"
            ) from None
        raise errors.rejected(error) from None
    except braid.BraidError as error:
        raise errors.rejected(error) from None
    except ValueError as error:
        raise errors.Failure(str(error)) from None


def _profile(wanted: str | None) -> tuple[str | None, dict[str, Value]]:
    """Returns the name and the settings of a profile. wanted: None: the file's default profile."""
    path = config_path()
    document = _read(path)
    profiles = document.get("profiles", {})
    for key in document:
        if key not in ("profile", "profiles"):
            raise errors.usage(f"{path}: {key}", "unknown key", "expected profile or profiles")
    if not isinstance(profiles, dict) or not all(isinstance(p, dict) for p in profiles.values()):
        raise errors.usage(f"{path}: profiles", "not tables", "expected [profiles.NAME]")
    name = wanted or document.get("profile")
    if name is None:
        return None, {}
    if name not in profiles:
        known = f"{path} has {', '.join(profiles) or 'none'}"
        raise errors.usage("profile", f"no profile {name!r}", known)
    return name, _values(path, f"profiles.{name}", profiles[name])


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise errors.usage(str(path), "cannot be read", error.strerror or str(error)) from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text.decode())
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors.
        raise errors.usage(str(path), "not valid TOML", str(error)) from None


def _values(path: Path, where: str, profile: Mapping[str, Any]) -> dict[str, Value]:
    values = {}
    for key, value in profile.items():
        field = f"{path}: {where}.{key}"
        if key not in _TYPES:
            raise errors.usage(field, "unknown key", f"expected one of: {', '.join(_TYPES)}")
        # bool is a subclass of int.
        if not isinstance(value, _TYPES[key]) or isinstance(value, bool) is not (key == "tls"):
            expected = _TYPE_NAMES[_TYPES[key][0]]
            raise errors.usage(field, f"invalid value {value!r}", f"expected {expected}")
        if key == "timeout" and not value >= 0:
            raise errors.usage(field, f"{value} is out of range", "expected 0 or more seconds")
        if key in _PATHS:
            value = os.path.normpath(path.parent / Path(value).expanduser())
        values[key] = Value(value, f"{where}.{key}")
    if "token" in values and "token_file" in values:
        raise errors.usage(
            f"{path}: {where}", "has token and token_file", "give only one of them"
        )
    return values


def _security(settings: Settings) -> dict[str, Any]:
    """Returns the arguments of `braid.connect` that concern TLS and the token."""
    values = settings.values
    for one, other in (("cert", "key"), ("key", "cert")):
        if one in values and other not in values:
            raise errors.usage(values[one].source, f"given without {other}", "expected both")
    security: dict[str, Any] = {"token": _token(values), "tls": bool(settings.get("tls"))}
    if not security["tls"]:
        for key in ("ca", "cert"):
            if key in values and values[key].source not in _VARIABLES.values():
                raise errors.usage(values[key].source, "given without TLS", "expected --tls too")
        return security
    for key, argument in (("ca", "ca"), ("cert", "certificate"), ("key", "key")):
        if key in values and values[key].value:
            security[argument] = _read_file(values[key])
    return security


def _token(values: Mapping[str, Value]) -> str | None:
    if "token_file" in values:
        source = values["token_file"].source
        token = _read_file(values["token_file"]).decode(errors="replace").strip()
    elif "token" in values:
        source, token = values["token"].source, values["token"].value.strip()
    else:
        return None
    if not _WORD.fullmatch(token):  # The message must not contain what may be a secret.
        raise errors.usage(source, "holds no token", "expected one word of printable characters")
    return token


def _read_file(path: Value) -> bytes:
    try:
        content = Path(path.value).read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise errors.usage(path.source, f"cannot read {path.value!r}", reason) from None
    if not content:
        raise errors.usage(path.source, f"{path.value!r} is empty", "expected a file with content")
    return content
