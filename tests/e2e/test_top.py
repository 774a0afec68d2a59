"""`braid top` on a real server, in a pseudo-terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import braid
import numpy as np
import pytest
from e2e.support import durable, jobs
from e2e.support.durable import CLASSES, FEATURES, DurableServer
from e2e.support.jobs import JobServer
from e2e.support.polling import wait_until
from e2e.support.screens import Screen, plain
from e2e.support.server import COMMAND

SECONDS = 60
JOB: dict[str, Any] = {
    "data": {"path": "table.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}},
    "loss": "cross_entropy", "optimizer": "SGD", "batch_size": 32, "epochs": 100_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Serves "noisy", which a job trains, and which has another trainer."""
    directory = tmp_path_factory.mktemp("top")
    durable.export_noisy(directory / "models/noisy")
    with jobs.serving(directory) as server:
        jobs.write_table(server.tables / "table.parquet", 1000, np.float32, FEATURES, CLASSES)
        with durable.connect(server) as client:
            client.create_trainer("noisy", name="mine", loss="cross_entropy", optimizer="SGD")
            job = client.jobs.train("noisy", **JOB, id="endless")
            wait_until(lambda: job.info().progress.step > 0)
        yield server


@contextmanager
def calling(server: DurableServer) -> Iterator[None]:
    """Sends requests and training steps one after the other."""
    started, ended = threading.Event(), threading.Event()

    def call() -> None:
        with durable.connect(server) as client:
            trainer = client.trainer("mine")
            for number in range(1_000_000):
                if ended.is_set():
                    return
                inputs, targets = durable.batch(number)
                client.infer("noisy", inputs)
                trainer.step(inputs, targets)
                started.set()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        assert started.wait(SECONDS)
        yield
    finally:
        ended.set()
        thread.join()


def command(server: DurableServer, *options: str) -> list[str]:
    return [str(COMMAND), "--server", server.address, "top", "--interval=0.2", *options]


def run(server: DurableServer, *options: str) -> str:
    ended = subprocess.run(
        command(server, "--once", *options), capture_output=True, text=True, timeout=SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def metrics_address(server: DurableServer) -> str:
    return f"--metrics=127.0.0.1:{server.ready['metrics_port']}"


def test_once_prints_plain_tables_of_devices_models_trainers_and_jobs(server: JobServer) -> None:
    printed = run(server)
    assert "\x1b" not in printed
    tables = [table.splitlines() for table in printed.split("\n\n")[1:]]
    assert [table[0].split()[0] for table in tables] == ["device", "model", "trainer", "job"]
    assert [row.split()[0] for row in tables[0][1:]] == ["cpu:0", "cpu:1"]
    assert [row.split()[0] for row in tables[2][1:]] == ["job-endless", "mine"]
    assert tables[3][1].split()[:4] == ["endless", "train", "noisy", "RUNNING"]


def test_rates_and_quantiles_of_a_busy_server(server: JobServer) -> None:
    with calling(server):
        [line] = run(server, "--json", metrics_address(server), "--interval=1").splitlines()
    seen = json.loads(line)
    assert sum(device["utilization"] for device in seen["devices"]) > 0
    assert seen["devices"][0]["memory_bytes"] > 0
    [model] = seen["models"]
    assert model["requests_per_second"] > 0
    assert 0 < model["p50_seconds"] <= model["p99_seconds"]
    assert model["queue_rows"] is not None
    trainers = {trainer["trainer"]: trainer for trainer in seen["trainers"]}
    assert trainers["mine"]["steps_per_second"] > 0
    assert trainers["mine"]["loss"] > 0
    assert seen["jobs"][0]["step"] > 0


@pytest.mark.parametrize("key, code", [("q", 0), ("\x03", 130)], ids=["q", "Ctrl-C"])
def test_a_key_ends_the_program_and_restores_the_terminal(
    server: JobServer, key: str, code: int
) -> None:
    with Screen(command(server)) as screen:
        screen.wait_for(lambda: "endless" in screen.text)
        assert screen.is_on_screen
        assert screen.lines[0].startswith(f"braid top  {server.address}")
        assert len(screen.lines) <= 24
        assert max(map(len, screen.lines)) <= 80
        screen.press(key)
        assert screen.wait() == code
        assert not screen.is_on_screen
        assert screen.output.rfind("\x1b[?25h") > screen.output.rfind("\x1b[?25l")
        assert screen.modes == screen.modes_before
        assert "Traceback" not in screen.output


def test_sigterm_restores_the_terminal(server: JobServer) -> None:
    with Screen(command(server)) as screen:
        screen.wait_for(lambda: "endless" in screen.text)
        screen.process.send_signal(signal.SIGTERM)
        assert screen.wait() == 128 + signal.SIGTERM
        assert not screen.is_on_screen
        assert screen.modes == screen.modes_before


def test_screen_follows_the_size_of_the_terminal(server: JobServer) -> None:
    variables = {"COLUMNS": "90", "LINES": "30"}  # As they were at the start.
    with Screen(command(server, "--interval=3600"), environment=variables) as screen:
        screen.wait_for(lambda: "endless" in screen.text)
        screen.resize(120, 40)
        screen.wait_for(lambda: len(screen.lines[0]) == 120)
        screen.resize(80, 8)
        screen.wait_for(lambda: len(screen.lines[0]) == 80)
        assert len(screen.lines) <= 8


def test_no_colors_with_no_color(server: JobServer) -> None:
    for environment, colored in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Screen(command(server), environment=environment) as screen:
            screen.wait_for(lambda: "RUNNING" in screen.text)
            assert ("\x1b[32mRUNNING" in screen.raw_screen) == colored
            screen.press("q")
            assert screen.wait() == 0


def state_of(pid: int) -> str:
    """Returns the state of a process, as proc(5) describes it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_suspends_and_continues(server: JobServer) -> None:
    with Screen(command(server)) as screen:
        screen.wait_for(lambda: "endless" in screen.text)
        screen.press("\x1a")
        screen.wait_for(lambda: not screen.is_on_screen)
        wait_until(lambda: state_of(screen.process.pid) == "T")
        assert screen.modes == screen.modes_before
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_for(lambda: screen.is_on_screen)
        screen.press("q")
        assert screen.wait() == 0


def test_a_server_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Without a data directory, the server has no jobs."""
    with durable.serving(tmp_path, with_data=False) as server:
        with Screen(command(server), columns=200) as screen:
            screen.wait_for(lambda: "noisy" in screen.text)
            assert "no trainers" in screen.text
            assert "jobs: " in screen.text
            server.kill()
            screen.wait_for(lambda: "trying again" in screen.text)
            assert "noisy" in screen.text  # The last figures stay.
            server.start()
            screen.wait_for(lambda: "trying again" not in screen.text)
            screen.press("q")
            assert screen.wait() == 0
            assert "warning" not in plain(screen.output)


def test_plot_of_a_job_fits_the_terminal(server: JobServer) -> None:
    plot = [str(COMMAND), "--server", server.address, "jobs", "plot", "endless"]
    with Screen(plot, columns=60) as screen:
        assert screen.wait() == 0
        lines = screen.output.splitlines()
    assert lines[0].startswith("loss ⠤  last ")
    assert any(line.startswith("lr ⠤  last 0.001") for line in lines)
    assert 50 < max(map(len, lines)) <= 60


def test_metrics_port_that_cannot_be_read(server: JobServer) -> None:
    printed = run(server, "--metrics=127.0.0.1:1")
    assert "metrics: http://127.0.0.1:1/metrics: Connection refused" in printed
    assert "noisy" in printed
