"""Output of `braid train` while it trains."""

import io
import json
import math
import re

import pytest

from braid.cli import progress
from braid.cli.progress import BarPrinter, JsonPrinter, Printer, Reporter


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def step(reporter, clock, loss, seconds, rows=10):
    clock.now += seconds
    reporter.step(loss, rows)


def test_lines_come_once_a_second_and_once_an_epoch(clock, capsys):
    with Reporter(Printer(), 2, 3, 0, clock) as reporter:
        for _ in range(6):
            step(reporter, clock, 1.0, 0.5)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1/2  step 2/3  loss 1.0000  20 rows/s",
        "epoch 1/2  3 steps  mean loss 1.0000  20 rows/s  1.5 s",
        "epoch 2/2  step 2/3  loss 1.0000  20 rows/s",
        "epoch 2/2  3 steps  mean loss 1.0000  20 rows/s  1.5 s",
    ]
    assert (reporter.total_steps, reporter.total_rows) == (6, 60)


def test_a_run_continues_in_the_middle_of_an_epoch(clock, capsys):
    with Reporter(Printer(), 3, 4, 6, clock) as reporter:
        for _ in range(3):
            step(reporter, clock, 1.0, 1.0)
    assert capsys.readouterr().out.splitlines() == [
        "epoch 2/3  step 3/4  loss 1.0000  10 rows/s",
        "epoch 2/3  step 4/4  loss 1.0000  10 rows/s",
        "epoch 2/3  4 steps  mean loss 1.0000  10 rows/s  2.0 s",
        "epoch 3/3  step 1/4  loss 1.0000  10 rows/s",
    ]
    assert reporter.total_steps == 3


def test_json_has_every_step_with_its_own_loss(clock, capsys):
    with Reporter(JsonPrinter(), 1, 2, 0, clock) as reporter:
        step(reporter, clock, 4.0, 0.5)
        step(reporter, clock, 2.0, 0.5)
    reporter.message("not shown", {"event": "published", "version": 2})
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events == [
        {"event": "step", "epoch": 1, "step": 1, "steps": 2, "loss": 4.0,
         "rows_per_second": 20.0},
        {"event": "step", "epoch": 1, "step": 2, "steps": 2, "loss": 2.0,
         "rows_per_second": 20.0},
        {"event": "epoch", "epoch": 1, "steps": 2, "mean_loss": 3.0, "rows_per_second": 20.0,
         "seconds": 1.0},
        {"event": "published", "version": 2},
    ]


def test_unknown_losses_are_left_out_of_the_mean(clock, capsys):
    with Reporter(JsonPrinter(), 2, 3, 0, clock) as reporter:
        for loss, rows in ((2.0, 10), (None, 10), (4.0, 30)):
            step(reporter, clock, loss, 1.0, rows)
        assert (reporter.mean_loss, reporter.total_rows) == (3.5, 50)
        for _ in range(3):
            step(reporter, clock, None, 1.0)
        assert math.isnan(reporter.mean_loss)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[1]["loss"] is None and events[-1]["mean_loss"] is None


def test_smoothed_loss_begins_at_the_first_loss_and_lags_behind(clock, capsys):
    with Reporter(Printer(), 1, 9, 0, clock) as reporter:
        step(reporter, clock, 8.0, 1.0)
        step(reporter, clock, 0.0, 1.0)
    # 8 and 0, with weights of 0.09 and 0.1.
    assert re.findall(r"loss (\S+)", capsys.readouterr().out) == ["8.0000", "3.7895"]


def test_a_terminal_has_a_bar_that_is_drawn_ten_times_a_second(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Reporter(BarPrinter(out), 1, 100, 0, clock) as reporter:
        out.truncate(0)
        for _ in range(30):
            step(reporter, clock, 1.0, 1 / 64)
        # The first step is shown at once, then each that is 0.1 s later.
        assert re.findall(r"(\d+)/100", out.getvalue()) == ["1", "8", "15", "22", "29"]
        reporter.message("note [1/2]", {})
        assert "note [1/2]" in out.getvalue()


@pytest.mark.parametrize("loss, text", [
    (2.302585, "2.3026"), (0.0, "0.0000"), (-0.5, "-0.5000"), (1.234e-6, "1.234e-06"),
    (123456.0, "1.235e+05"), (math.nan, "nan"), (math.inf, "inf"),
])
def test_losses(loss, text):
    assert progress.loss_text(loss) == text


@pytest.mark.parametrize("rate, text", [(0.0, "0.0"), (5.62, "5.6"), (98765.4, "98765")])
def test_rates(rate, text):
    assert progress.rate_text(rate) == text
