"""Command lines that are wrong, and the help."""

import re

import pytest

from braid.cli import main
from braid.cli.app import COMMANDS


@pytest.mark.parametrize("arguments, message", [
    (["explode"], "explode: unknown command (expected one of: infer, train, "),
    (["checkpoints", "explode"], "explode: unknown command (expected one of: list, restore, save)"),
    (["--explode"], "--explode: unknown option (see braid --help)"),
    (["infer", "m", "--inptu", "x"], "--inptu: unknown option (did you mean --input"),
    (["infer"], "MODEL: missing (see braid infer --help)"),
    (["infer", "m"], "--input: missing (see braid infer --help)"),
    (["infer", "m", "--input"], "--input: requires an argument (see braid "),
    (["infer", "m", "--split=yes", "--input", "x=y"], "--split: does not take a value (see braid "),
    (["infer", "m", "--input", "x"], "--input: invalid value 'x' (expected NAME=FILE.npy)"),
    (["infer", "m", "--input", "=x"], "--input: invalid value '=x' (expected NAME=FILE.npy)"),
    (["infer", "m", "--input", "x=a", "--input", "x=b"], "--input: 'x' is given twice (expected "),
    (["infer", "m", "--input", "x=none.npy"],
     "none.npy: cannot be read (No such file or directory)"),
    (["--timeout", "-1", "models"],
     "--timeout: -1 is out of range (expected a number, 0 or more)"),
    (["models", "--timeout", "soon"],
     "--timeout: invalid value 'soon' (expected a number, 0 or more)"),
    (["rollback", "m", "one"], "VERSION: invalid value 'one' (expected a whole number from 1 to "),
    (["rollback", "m", "1", "2"], "2: unexpected argument (see braid rollback --help)"),
    (["download", "t", "f", "--format", "onnx"],
     "--format: invalid value 'onnx' (expected package, safetensors, torchscript)"),
    (["completion", "tcsh"], "bash|zsh|fish: invalid value 'tcsh' (expected bash, zsh, fish)"),
    (["train", "m", "--input", "x=y", "--epochs", "0"],
     "--epochs: 0 is out of range (expected a whole number, 1 or more)"),
    (["train", "m", "--input", "x=y", "--lr", "nan"],
     "--lr: invalid value 'nan' (expected a number)"),
    (["train", "--input", "x=y"], "MODEL: missing (expected a model, or --attach)"),
    (["train", "--attach", "t", "--lr", "1", "--input", "x=y"],
     "--lr: given with --attach (decided when a trainer is created)"),
])
def test_wrong_usage_ends_with_2_and_one_line(run, arguments, message):
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"braid: {message}")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["checkpoints"], ["config"]])
def test_missing_command_shows_the_help_on_stderr(run, arguments):
    ended = run(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Usage: braid ")


@pytest.mark.parametrize("arguments", [
    [], *([name] for name in COMMANDS), ["checkpoints", "restore"], ["config", "show"],
])
def test_every_command_has_help(run, arguments):
    for option in ("--help", "-h"):
        ended = run(*arguments, option)
        assert (ended.code, ended.err) == (0, "")
        assert ended.out.startswith(f"Usage: braid {' '.join(arguments)}".rstrip())


def test_help_of_train_groups_its_options(run):
    text = run("train", "--help").out
    titles = ["Data:", "Loss and optimizer:", "How and where to compute:", "Trainer:", "Options:"]
    places = [text.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    assert "--batch-size N            Rows of one step, over all devices  [default: 64]" in text
    assert "--server" not in text.replace("such as --server", "")


def test_help_of_the_command_lists_commands_and_global_options(run):
    text = run("--help").out
    for word in (*COMMANDS, "--server", "--json", "--timeout", "--tls", "--ca", "--cert", "--key",
                 "--token_file", "--profile", "Exit codes: "):
        assert word in text
    assert "..." not in text.partition("Commands:")[2].partition("\n\n")[0]


def test_lists_of_commands_have_no_full_stops(run):
    for group in ("", "jobs", "models", "checkpoints"):
        listed = run(*group.split(), "--help").out.partition("Commands:")[2].partition("\n\n")[0]
        assert not re.search(r"[^.]\.$", listed, re.MULTILINE), group


def test_version(run):
    import braid

    assert run("--version").out == f"braid {braid.__version__}\n"


@pytest.mark.parametrize("shell, word", [
    ("bash", "complete -o nosort"), ("zsh", "compdef"), ("fish", "complete --no-files"),
])
def test_completion_prints_a_script(run, shell, word):
    ended = run("completion", shell)
    assert ended.code == 0
    assert word in ended.out and "_BRAID_COMPLETE" in ended.out


def test_shell_completes_commands_and_options(monkeypatch, capsys):
    monkeypatch.setenv("_BRAID_COMPLETE", "bash_complete")
    for words, index, found in (
        ("braid tr", 1, {"plain,train", "plain,trainers"}),
        ("braid train --lo", 2, {"plain,--loss", "plain,--loss-mode"}),
        ("braid models --ser", 2, {"plain,--server"}),
        ("braid download t f --format s", 5, {"plain,safetensors"}),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(index))
        with pytest.raises(SystemExit):
            main([])
        assert set(capsys.readouterr().out.split()) == found


def test_global_options_are_accepted_before_and_after_the_command(run, server):
    for arguments in (
        ["--server", server.address, "--json", "models"],
        ["models", "--server", server.address, "--json"],
        ["--server", server.address, "checkpoints", "--json", "list", "--timeout", "5", "none"],
    ):
        ended = run(*arguments)
        assert ended.out.startswith("{") or "none" in ended.err
