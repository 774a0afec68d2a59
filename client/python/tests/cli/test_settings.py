"""The server and the credentials: command line, environment and profiles."""

import click
import grpc
import pytest

from braid.cli import settings
from braid.cli.options import Flags

CONFIG = """
profile = "lab"

[profiles.lab]
server = "lab:1"
timeout = 60
tls = true
ca = "ca.pem"
token = "word"

[profiles.local]
token_file = "/run/token"
"""


@pytest.fixture
def write_config():
    def write(text):
        path = settings.config_path()
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return path

    return write


def values(flags=None):
    loaded = settings.load(flags or Flags())
    return {key: (each.value, each.source) for key, each in loaded.values.items()}


def test_defaults_without_a_configuration_file():
    assert values() == {
        "server": ("127.0.0.1:8001", "default"), "timeout": (0, "default"),
        "tls": (False, "default"),
    }


def test_default_profile_of_the_file(write_config):
    path = write_config(CONFIG)
    assert values() == {
        "server": ("lab:1", "profiles.lab.server"),
        "timeout": (60, "profiles.lab.timeout"),
        "tls": (True, "profiles.lab.tls"),
        "ca": (str(path.parent / "ca.pem"), "profiles.lab.ca"),
        "token": ("word", "profiles.lab.token"),
    }


def test_flags_come_before_variables_and_variables_before_the_profile(write_config, monkeypatch):
    write_config(CONFIG)
    monkeypatch.setenv("BRAID_SERVER", "variable:1")
    monkeypatch.setenv("BRAID_TOKEN", "other")
    found = values(Flags(ca="flag.pem", tls=False))
    assert found["server"] == ("variable:1", "BRAID_SERVER")
    assert found["token"] == ("other", "BRAID_TOKEN")
    assert found["ca"] == ("flag.pem", "--ca")
    assert found["tls"] == (False, "--tls")
    assert found["timeout"] == (60, "profiles.lab.timeout")
    assert values(Flags(server="flag:1"))["server"] == ("flag:1", "--server")


def test_a_profile_of_the_command_line_comes_before_variables(write_config, monkeypatch):
    write_config(CONFIG)
    for variable in ("BRAID_SERVER", "BRAID_CA", "BRAID_TOKEN"):
        monkeypatch.setenv(variable, "other")
    lab = values(Flags(profile="lab"))
    assert (lab["server"][0], lab["token"][0]) == ("lab:1", "word")
    assert lab["ca"][1] == "profiles.lab.ca"
    local = values(Flags(profile="local"))
    assert local["server"] == ("other", "BRAID_SERVER")
    assert "token" not in local


def test_profile_by_option_or_variable(write_config, monkeypatch):
    write_config(CONFIG)
    assert values(Flags(profile="local"))["token_file"] == (
        "/run/token", "profiles.local.token_file"
    )
    monkeypatch.setenv("BRAID_PROFILE", "local")
    assert settings.load(Flags()).profile == "local"
    assert settings.load(Flags(profile="lab")).profile == "lab"


def test_one_way_to_give_a_token_is_used(write_config, monkeypatch):
    write_config(CONFIG)
    assert "token" not in values(Flags(token_file="file"))
    monkeypatch.setenv("BRAID_TOKEN", "word")
    monkeypatch.setenv("BRAID_PROFILE", "local")
    assert "token_file" not in values()
    assert "token" not in values(Flags(token_file="file"))


@pytest.mark.parametrize("text, message", [
    ("[profiles.a]\nsevrer = 'x'", ": profiles.a.sevrer: unknown key (expected one of: server, "),
    ("[profiles.a]\nserver = 1", ": profiles.a.server: invalid value 1 (expected text)"),
    ("[profiles.a]\ntimeout = true",
     ": profiles.a.timeout: invalid value True (expected a number)"),
    ("[profiles.a]\ntls = 'yes'", ": profiles.a.tls: invalid value 'yes' (expected true or false)"),
    ("[profiles.a]\ntimeout = -1", ": profiles.a.timeout: -1 is out of range (expected 0 or more"),
    ("[profiles.a]\ntoken = 'a'\ntoken_file = 'b'", ": profiles.a: has token and token_file"),
    ("profiles = 1", ": profiles: not tables (expected [profiles.NAME])"),
    ("server = 'x'", ": server: unknown key (expected profile or profiles)"),
    ("[profiles", ": not valid TOML ("),
])
def test_errors_in_the_file_name_the_key(write_config, text, message):
    path = write_config(text)
    with pytest.raises(click.UsageError) as caught:
        settings.load(Flags(profile="a"))
    assert caught.value.message.startswith(f"{path}{message}")


def test_a_missing_token_is_named(call, server):
    message = "the call has no credentials (expected `authorization: Bearer TOKEN`)"
    server.fail("ServerLive", grpc.StatusCode.UNAUTHENTICATED, message)
    ended = call("devices")
    assert ended.err == f"braid: {message}; set --token_file or BRAID_TOKEN (UNAUTHENTICATED)\n"


def test_config_show_says_why_no_profile_is_used(run, write_config):
    path = settings.config_path()
    assert run("config", "show").out.startswith(f"no profile ({path} does not exist)\n")
    write_config("")
    assert run("config", "show").out.startswith(f"no profile ({path} selects none)\n")


def test_unknown_profile(write_config):
    with pytest.raises(click.UsageError) as caught:
        settings.load(Flags(profile="home"))
    path = settings.config_path()
    assert caught.value.message == f"profile: no profile 'home' ({path} has none)"
    write_config(CONFIG)
    with pytest.raises(click.UsageError, match="has lab, local"):
        settings.load(Flags(profile="home"))


@pytest.mark.parametrize("arguments, message", [
    (["--cert", "c.pem"], "--cert: given without key (expected both)"),
    (["--tls", "--key", "k.pem"], "--key: given without cert (expected both)"),
    (["--cert", "c.pem", "--key", "k.pem"], "--cert: given without TLS (expected --tls too)"),
    (["--ca", "ca.pem"], "--ca: given without TLS (expected --tls too)"),
    (["--tls", "--ca", "/none"], "--ca: cannot read '/none' (No such file or directory)"),
    (["--token_file", "/none"], "--token_file: cannot read '/none' (No such file or directory)"),
    (["--token_file", "/dev/null"], "--token_file: '/dev/null' is empty (expected a file "),
])
def test_wrong_credentials_name_the_option(run, arguments, message):
    ended = run(*arguments, "models")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"braid: {message}")


@pytest.mark.parametrize("token", ["", "two words", "line\nline"])
def test_a_malformed_token_is_not_printed(run, monkeypatch, token):
    monkeypatch.setenv("BRAID_TOKEN", token)
    ended = run("models")
    assert ended.code == 2
    assert ended.err == (
        "braid: BRAID_TOKEN: holds no token (expected one word of printable characters)\n"
    )


def test_authorities_of_the_environment_are_ignored_without_tls(call, monkeypatch):
    monkeypatch.setenv("BRAID_CA", "/none")
    assert call("models").code == 0


def test_config_shows_settings_and_hides_the_token(run, write_config):
    path = write_config(CONFIG)
    assert run("config", "show").out == (
        f"profile lab of {path}\n"
        "setting  value" + " " * (len(str(path.parent)) + 4) + "source\n"
        "server   lab:1" + " " * (len(str(path.parent)) + 4) + "profiles.lab.server\n"
        "timeout  60" + " " * (len(str(path.parent)) + 7) + "profiles.lab.timeout\n"
        "tls      true" + " " * (len(str(path.parent)) + 5) + "profiles.lab.tls\n"
        f"ca       {path.parent}/ca.pem  profiles.lab.ca\n"
        "token    (hidden)" + " " * (len(str(path.parent)) + 1) + "profiles.lab.token\n"
    )
    [shown] = run("config", "show", "--json").events
    assert shown["profile"] == "lab" and shown["path"] == str(path)
    assert shown["settings"]["token"] == {"value": "(hidden)", "source": "profiles.lab.token"}


def test_config_path(run):
    path = str(settings.config_path())
    assert run("config", "path").out == f"{path}\n"
    assert run("config", "path", "--json").events == [{"path": path, "exists": False}]


def test_commands_use_the_profile(run, server, write_config):
    write_config(f"[profiles.fake]\nserver = '{server.address}'")
    assert "fashion" in run("models", "--profile", "fake").out
