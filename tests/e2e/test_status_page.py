"""The status page of the metrics port and the JSON that it shows, on a real server and in Chromium."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braid
import numpy as np
import pytest
from braid.cli.top import metrics_port
from e2e.support import chromium, durable, jobs, status
from e2e.support.chromium import Page
from e2e.support.durable import CLASSES, FEATURES
from e2e.support.jobs import JobServer
from e2e.support.polling import wait_until
from e2e.support.status import StatusServer

JOB: dict[str, Any] = {
    "data": {"path": "table.parquet", "inputs": {"x": "image"}, "targets": {"target": "label"}},
    "loss": "cross_entropy", "optimizer": "SGD", "batch_size": 32, "epochs": 100_000,
}  # fmt: skip
POLICY = {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"}

in_chromium = pytest.mark.skipif(not chromium.PROGRAM.exists(), reason=chromium.MISSING)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    """Serves "noisy", which a job trains, and which has another trainer. Other jobs wait."""
    directory = tmp_path_factory.mktemp("status")
    durable.export_noisy(directory / "models/noisy")
    with jobs.serving(directory) as server:
        jobs.write_table(server.tables / "table.parquet", 1000, np.float32, FEATURES, CLASSES)
        with durable.connect(server) as client:
            trainer = client.create_trainer(
                "noisy", name="mine", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.25}
            )
            trainer.step(*durable.batch(0))
            running = client.jobs.train("noisy", **JOB, id="running", priority=1)
            wait_until(lambda: running.info().progress.step > 0)
            for id, priority in (("later", -1), ("next", 0), ("paused", 0), ("cancelled", 0)):
                waiting = client.jobs.train("noisy", **JOB, id=id, priority=priority)
                if id in ("paused", "cancelled"):
                    waiting.pause() if id == "paused" else waiting.cancel()
        yield server


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page that reads the status when it is opened and when a test calls update()."""
    with Page() as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source="window.setTimeout = () => 0")
        yield page


def show(page: Page, *samples: dict[str, Any]) -> None:
    """Opens the page, which reads the samples one after the other."""
    page.problems.clear()
    with StatusServer(samples[0]) as server:
        page.open(server.url)
        page.wait_for("document.readyState === 'complete' && before !== null")
        for sample in samples[1:]:
            server.show(sample)
            page.evaluate("update()")
    assert page.problems == []


def get(server: JobServer, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    url = server.metrics_url.removesuffix("/metrics") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as reply:
            return reply.status, dict(reply.headers), reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def test_status_has_devices_models_trainers_and_jobs(server: JobServer) -> None:
    with durable.connect(server) as client:
        before = status.read(server.metrics_url)
        for number in range(3):
            client.infer("noisy", durable.batch(number)[0])
        with pytest.raises(braid.InvalidArgument):
            client.infer("noisy", {"x": np.zeros((1, FEATURES + 1), np.float32)})
        now = status.read(server.metrics_url)

    assert (now["ready"], now["reason"]) == (True, "")
    assert now["uptime_seconds"] > before["uptime_seconds"] > 0
    assert [device["name"] for device in now["devices"]] == ["cpu:0", "cpu:1"]
    for device in now["devices"]:
        assert device["busy_seconds"]["forward"] > 0 and device["rows"] > 0
        assert device["healthy"] and device["memory_bytes"] > 0

    [model], [old] = now["models"], before["models"]
    assert (model["name"], model["versions"]) == ("noisy", [1])
    assert model["requests"] - old["requests"] == 4
    assert model["failures"] - old["failures"] == 1
    assert sum(model["durations"]) == model["requests"]
    assert len(model["durations"]) == len(now["duration_bounds_seconds"]) + 1

    trainers = {trainer["name"]: trainer for trainer in now["trainers"]}
    assert list(trainers) == ["job-running", "mine"]
    mine = trainers["mine"]
    assert (mine["model"], mine["failed"], mine["step"], mine["lr"]) == ("noisy", False, 1, 0.25)
    assert mine["loss"] > 0 and mine["memory_bytes"] > 0
    assert mine["devices"] == ["cpu:0", "cpu:1"]


def test_status_lists_running_jobs_then_waiting_then_ended_ones(server: JobServer) -> None:
    now = status.read(server.metrics_url)
    assert [(job["id"], job["state"]) for job in now["jobs"]] == [
        ("running", "RUNNING"), ("next", "QUEUED"), ("later", "QUEUED"), ("paused", "PAUSED"),
        ("cancelled", "CANCELLED"),
    ]  # fmt: skip
    running = now["jobs"][0]
    assert (running["kind"], running["model"]) == ("train", "noisy")
    assert now["job_counts"] == {"QUEUED": 2, "RUNNING": 1, "PAUSED": 1, "CANCELLED": 1}
    wait_until(lambda: status.read(server.metrics_url)["jobs"][0]["step"] > running["step"])


def test_a_server_without_jobs_says_why(tmp_path: Path) -> None:
    with durable.serving(tmp_path, with_data=False) as server:
        now = status.read(server.metrics_url)
    assert (now["jobs"], now["job_counts"]) == (None, None)
    assert "started without --data_dir" in now["jobs_error"]


def test_replies_are_read_only_and_have_a_strict_policy(server: JobServer) -> None:
    for path, kind in (("/", "text/html"), ("/status.js", "text/javascript"),
                       ("/status.css", "text/css"), ("/status.json", "application/json")):  # fmt: skip
        code, headers, body = get(server, path)
        assert (code, headers["Content-Type"].partition(";")[0]) == (200, kind)
        policy = headers["Content-Security-Policy"]
        assert POLICY <= set(policy.split("; ")) and "unsafe" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in headers
        # Nothing from elsewhere, except the name of a namespace.
        assert "://" not in body.replace("http://www.w3.org/2000/svg", "")
        assert get(server, path, "POST")[0] == 405
        assert get(server, path, "HEAD")[::2] == (200, "")


@in_chromium
def test_page_shows_a_busy_server(server: JobServer) -> None:
    with durable.connect(server) as client, Page() as page:
        page.open(server.metrics_url.removesuffix("metrics"))

        def is_shown() -> bool:
            client.infer("noisy", durable.batch(1)[0])
            models, running = page.table("models"), page.table("jobs")
            return bool(models and running) and "–" not in (models[0]["p99"], running[0]["left"])

        wait_until(is_shown)
        [model] = page.table("models")
        assert (model["model"], model["versions"], model["failed/s"]) == ("noisy", "1", "0")
        assert float(model["requests/s"].replace(",", "")) > 0
        devices = page.table("devices")
        assert [device["device"] for device in devices] == ["cpu:0", "cpu:1"]
        assert any("forward" in device["phases"] for device in devices)
        trainers = [trainer["trainer"] for trainer in page.table("trainers")]
        assert trainers == ["job-running", "mine"]
        assert [job["state"] for job in page.table("jobs")][:2] == ["RUNNING", "QUEUED"]
        assert page.evaluate("document.title").endswith(" – Braid")
        assert page.evaluate("document.getElementById('state').textContent") == "ready"
        assert page.problems == []
        origin = server.metrics_url.removesuffix("metrics")
        assert all(url.startswith((origin, "data:")) for url in page.requested)


@in_chromium
def test_rates_and_quantiles_are_those_between_two_samples(page: Page) -> None:
    counts = [[5, 0, 0, 0, 0, 0], [105, 50, 30, 14, 5, 1]]
    busy = {"forward": 10.0, "backward": 5.0}
    samples = [
        status.sample(
            100.0 + 4 * number,
            devices=[
                status.device("cpu:0", busy_seconds=busy if number else dict.fromkeys(busy, 9.0)),
                status.device("cuda:0", healthy=False, memory_bytes=2**30, memory_total_bytes=2**31),
            ],
            models=[status.model("m", counts[number], failures=6 * number, queue_rows=1234)],
            trainers=[status.trainer("t", step=10 + 20 * number, loss=0.25)],
            jobs=[status.job("j", rows=250, total_rows=1000, rows_per_second=10.0, loss=1e-5)],
        )
        for number in range(2)
    ]  # fmt: skip
    samples[0]["devices"][0]["busy_seconds"]["backward"] = 4.0
    show(page, *samples)

    [model] = page.table("models")
    assert (model["requests/s"], model["failed/s"]) == ("50", "1.5")
    assert model["rows in queue"] == "1,234"
    cumulative = [
        dict(zip([*status.BOUNDS, float("inf")], np.cumsum(each).tolist())) for each in counts
    ]
    for heading, share in (("p50", 0.5), ("p99", 0.99)):
        expected = metrics_port.quantile(share, *cumulative)
        assert expected is not None
        assert float(model[heading].removesuffix(" ms")) == pytest.approx(1e3 * expected, rel=0.01)
    first, second = page.table("devices")
    assert (first["busy"], first["phases"]) == ("50 %", "forward 25 %, backward 25 %")
    assert (second["busy"], second["memory"]) == ("lost", "1.0 GiB of 2.0 GiB")
    [trainer], [job] = page.table("trainers"), page.table("jobs")
    assert (trainer["steps/s"], trainer["loss"]) == ("5.0", "0.2500")
    assert (job["done"], job["left"], job["loss"]) == ("25 %", "1:15", "1.000e-5")


@in_chromium
def test_counters_that_start_again_give_no_negative_rates(page: Page) -> None:
    model, trainer = status.model("m", [9, 0, 0, 0, 0, 0]), status.trainer("t", step=50)
    loaded_again, restored = status.model("m", [2, 0, 0, 0, 0, 0]), status.trainer("t", step=40)
    show(page, status.sample(100.0, models=[model], trainers=[trainer]),
         status.sample(102.0, models=[loaded_again], trainers=[restored]))  # fmt: skip
    assert page.table("models")[0]["requests/s"] == "1.0"
    assert page.table("trainers")[0]["steps/s"] == "–"
    # A server that has started again.
    show(page, status.sample(100.0, models=[model]), status.sample(1.0, models=[loaded_again]))
    assert page.table("models")[0]["requests/s"] == "–"
    assert page.table("models")[0]["p99"] == "–"


@in_chromium
def test_markup_in_names_is_shown_as_text(page: Page) -> None:
    name = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>&amp;"
    now = status.sample(
        1.0, version=name, ready=False, reason=name, jobs_error=name, job_counts={name: 1},
        devices=[status.device(name, hardware=name, busy_seconds={name: 1.0})],
        models=[status.model(name, versions=[name])],
        trainers=[status.trainer(name, model=name, devices=[name])],
        jobs=[status.job(name, kind=name, model=name, state=name)],
    )  # fmt: skip
    show(page, now, {**now, "uptime_seconds": 2.0})
    for section, heading in (
        ("devices", "device"), ("models", "model"), ("trainers", "trainer"), ("jobs", "job")
    ):  # fmt: skip
        assert page.table(section)[0][heading] == name
    assert page.evaluate("document.querySelectorAll('img, script:not([src])').length") == 0
    assert page.evaluate("window.ran") is None


@in_chromium
def test_rows_follow_the_server_and_keep_their_order(page: Page) -> None:
    def models(*names: str) -> dict[str, Any]:
        return status.sample(1.0, models=[status.model(name) for name in names])

    show(page, models("b", "d"), models("a", "b", "c", "d"), models("c", "d", "e"))
    assert [row["model"] for row in page.table("models")] == ["c", "d", "e"]
    show(page, models("a"), models())
    assert page.table("models") == []
    shown = page.evaluate("document.getElementById('models').innerText")
    assert "No models are served." in shown


@in_chromium
def test_page_shows_that_the_server_is_gone_until_it_is_back(page: Page) -> None:
    problem = "document.getElementById('problem')"
    with StatusServer(status.sample(1.0, models=[status.model("m")])) as server:
        page.open(server.url)
        page.wait_for("document.readyState === 'complete' && before !== null")
        assert page.evaluate(f"{problem}.hidden")
        server.reply = (503, "the server is shutting down\n")
        page.evaluate("update()")
        assert "(HTTP status 503: the server is shutting down)" in page.evaluate(
            f"{problem}.innerText"
        )
        assert page.evaluate("document.getElementById('state').innerText") == ""
        server.show(status.sample(2.0))
        page.evaluate("update()")
        assert page.evaluate(f"{problem}.hidden")
        assert page.evaluate("document.getElementById('state').innerText") == "ready"
        server.show(status.sample(3.0, models=[status.model("m")]))
        page.evaluate("update()")
    page.evaluate("update()")
    assert "(it cannot be reached)" in page.evaluate(f"{problem}.innerText")
    assert page.table("models")[0]["model"] == "m"  # The last figures stay.
    assert page.evaluate("document.getElementById('figures').className") == "old"
    page.problems.clear()


@in_chromium
def test_page_follows_the_color_scheme_and_fits_a_phone(page: Page) -> None:
    name = "a-name-without-an-end-" * 12
    show(page, status.sample(1.0, models=[status.model(name)], jobs=[status.job(name)]))
    colors = []
    for dark in (False, True):
        page.set_dark(dark)
        colors.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    page.set_dark(False)
    assert colors == ["rgb(245, 247, 248)", "rgb(18, 24, 27)"]
    page.resize(380, 800)
    width = page.evaluate("document.documentElement.scrollWidth")
    page.resize(1280, 900)
    assert width <= 380


@in_chromium
def test_page_without_javascript_says_where_the_figures_are(page: Page) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        with StatusServer(status.sample(1.0)) as server:
            page.open(server.url)
            page.wait_for("document.body?.innerText.includes('needs JavaScript')")
        assert page.evaluate("document.querySelector('noscript a').innerText") == "status.json"
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


@in_chromium
def test_page_polls_while_it_is_visible() -> None:
    with StatusServer(status.sample(1.0)) as server, Page() as page:
        page.open(server.url)
        wait_until(lambda: server.reads >= 3)
        assert page.problems == []
