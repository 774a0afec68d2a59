"""Exports that take long report their stages."""

import io
import logging
import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import braid  # noqa: E402
from braid.exporter import progress  # noqa: E402
from torch import nn  # noqa: E402


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def slow(monkeypatch):
    """Exports count as slow from the start."""
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)


def export(tmp_path):
    braid.export(nn.Linear(2, 2), [torch.randn(4, 2)], tmp_path / "net", precisions=[])


def test_terminal_shows_stages_and_is_cleared(tmp_path, slow, monkeypatch, capfd):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    export(tmp_path)
    drawn = terminal.getvalue().split("\r\x1b[2K")
    shown = [line.partition(" (")[0] for line in drawn]
    for stage in ("tracing forward and backward", "comparing with the module, batch of 7"):
        assert f"exporting: {stage}" in shown
    assert drawn[-1] == ""
    assert capfd.readouterr().out == ""


def test_log_has_each_stage_once(tmp_path, slow, caplog, capfd):
    caplog.set_level(logging.INFO, logger="braid")
    export(tmp_path)
    assert {(record.name, record.levelno) for record in caplog.records} == {("braid", logging.INFO)}
    stages = [record.getMessage() for record in caplog.records]
    assert stages[-4:] == [
        "export: comparing with the module, batch of 7",
        "export: comparing with the module, batch of 33",
        "export: comparing with the module, batch of 1",
        "export: adding a self-test",
    ]
    assert len(set(stages)) == len(stages)
    assert capfd.readouterr() == ("", "")


def test_short_export_shows_nothing(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.reported():
        progress.stage("tracing")
    progress.stage("nothing is exported")
    assert terminal.getvalue() == ""


def test_long_stage_is_shown_before_it_ends_or_fails(slow, monkeypatch):
    """The thread shows it, without another stage."""
    shown = threading.Event()

    class Watched(Terminal):
        def write(self, text):
            if "tracing" in text:
                shown.set()
            return super().write(text)

    terminal = Watched()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.01)
    with pytest.raises(braid.ExportError), progress.reported():
        progress.stage("tracing")
        assert shown.wait(20)
        raise braid.ExportError("failed")
    assert terminal.getvalue().endswith("\r\x1b[2K")
