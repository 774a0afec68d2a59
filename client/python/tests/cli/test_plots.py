"""`braid jobs plot`: curves as text and as files."""

import sys

import numpy as np
import pytest

from braid.cli import job_specs, plots
from braid.jobs import Series


def series(steps, values):
    return Series(np.array(steps, np.int64), np.array(values, np.float64))


@pytest.fixture
def plot(call, tmp_path):
    """plot(*options): draws the metrics of a job of 3 steps."""
    path = tmp_path / "spec.yaml"
    path.write_text(job_specs.TRAIN)
    assert call("jobs", "submit", path, "--id=a").code == 0
    return lambda *options: call("jobs", "plot", "a", *options)


def test_curve_with_marks_of_evaluations():
    lines = plots.text_lines(
        {"evaluation/loss": series([3], [1.0]), "loss": series([1, 2, 3], [3, 1, 2])}, 30
    )
    assert lines == [
        "loss ⠤  last 2  evaluation/los",
        "    3 ┤⢳⡀",
        "      ┤ ⠹⡄",
        "      ┤  ⠹⡄",
        "      ┤   ⠙⣆",
        "      ┤    ⠘⣆",
        "1.889 ┤     ⠈⢧             ⢀⡴⠋",
        "      ┤      ⠈⢧⡀         ⣠⠖⠋",
        "      ┤        ⢳⡀     ⢀⡤⠞⠁",
        "      ┤         ⢳⡀  ⣠⠴⠋",
        "    1 ┤          ⠹⣤⠞⠁        ●",
        "      └───────────────────────",
        "       1                     3",
    ]


def test_curves_in_plain_ascii():
    lines = plots.text_lines({"loss": series(range(1, 11), range(10))}, 16, ascii_only=True)
    assert lines == [
        "loss .  last 9",
        "9 |            .",
        "  |          ...",
        "  |         ..",
        "  |        ..",
        "  |      ...",
        "4 |     ..",
        "  |    ..",
        "  |  ...",
        "  | ..",
        "0 |..",
        "  +-------------",
        "   1          10",
    ]


@pytest.mark.parametrize("width", [20, 79, 200])
def test_lines_fit_and_many_steps_are_drawn_in_little_time(width):
    steps = np.arange(1, 1_000_001)
    values = np.sin(steps / 1e5)
    lines = plots.text_lines({"loss": Series(steps, values), "lr": Series(steps, values)}, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 * 13 + 1


def test_values_that_are_not_finite_are_left_out_and_counted():
    lines = plots.text_lines({"loss": series([1, 2, 3], [1, np.nan, 2])}, 60)
    assert lines[0] == "loss ⠤  last 2  (1 value not finite)"
    assert plots.text_lines({"loss": series([1, 2], [np.inf, np.nan])}, 60) == [
        "loss ⠤  (2 values not finite)"
    ]


def test_one_value_and_constant_values():
    for steps, values in (([5], [0.5]), ([1, 2, 3], [0.5, 0.5, 0.5])):
        lines = plots.text_lines({"loss": series(steps, values)}, 40)
        assert any("⠁" <= character <= "⣿" for line in lines[1:] for character in line)


def test_evaluations_share_the_plot_of_their_metric():
    names = ["evaluation/accuracy", "evaluation/loss", "loss", "lr"]
    grouped = plots.panels({name: series([1], [1]) for name in names})
    assert {name: list(panel) for name, panel in grouped.items()} == {
        "loss": ["loss", "evaluation/loss"], "lr": ["lr"], "accuracy": ["evaluation/accuracy"],
    }  # fmt: skip


def test_plots_in_the_terminal(plot):
    ended = plot()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("loss ⠤  last 0.3333  evaluation/loss ●  last 0.5\n")
    ended = plot("--name", "evaluation/loss")
    assert ended.out.startswith("evaluation/loss ●  last 0.5\n")
    assert plot("--name", "nonsense").err == (
        "braid: --name: job a has no metric 'nonsense' (expected one of: evaluation/loss, loss)\n"
    )


@pytest.mark.parametrize("suffix, start", [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_writes_files(plot, tmp_path, suffix, start):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    ended = plot("-o", path)
    assert (ended.code, ended.out, ended.err) == (0, f"wrote {path}\n", "")
    content = path.read_bytes()
    assert content.startswith(start)
    [written] = plot("-o", path, "--json").events
    assert written == {"output": str(path), "metrics": ["evaluation/loss", "loss"]}
    assert path.read_bytes() == content
    ended = plot("-o", tmp_path / f"none/plot{suffix}")
    assert ended.code == 2
    assert ended.err.endswith(": cannot be written (No such file or directory)\n")


def test_missing_library(plot, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = plot("-o", tmp_path / "plot.png")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "braid: --output: matplotlib is not installed (pip install 'braid-client[plot]')\n"
    )


def test_wrong_options(plot):
    assert plot("-o", "plot.gif").err == (
        "braid: --output: unknown format 'plot.gif' (expected a name that ends in .png or .svg)\n"
    )
    assert plot("--json").err == (
        "braid: --json: needs --output (to print the values, use braid jobs metrics --json)\n"
    )


def test_a_job_without_metrics(plot, monkeypatch):
    monkeypatch.setattr("braid.jobs.Job.metrics", lambda *_: {})
    assert plot().err == "braid: job a has no metrics\n"
