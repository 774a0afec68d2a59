"""`braid top`: figures between two samples, their tables, and the metrics port."""

import dataclasses
import http.server
import threading

import grpc
import pytest

from braid.cli import job_specs
from braid.cli.top import metrics_port, tables, view
from braid.cli.top.metrics_port import Metrics
from braid.cli.top.samples import Counters, Sample
from braid.jobs import JobInfo, JobProgress
from braid.results import Device, DeviceMemory, TrainerInfo
from fake_jobs import PAUSED, RUNNING

METRICS = """\
# TYPE braid_request_duration_seconds histogram
braid_request_duration_seconds_bucket{method="ModelInfer",model="m",le="0.001"} 10
braid_request_duration_seconds_bucket{method="ModelInfer",model="m",le="0.01"} 20
braid_request_duration_seconds_bucket{method="ModelInfer",model="m",le="+Inf"} 20
braid_request_duration_seconds_bucket{method="ModelStreamInfer",model="m",le="0.001"} 5
braid_request_duration_seconds_bucket{method="ModelStreamInfer",model="m",le="0.01"} 5
braid_request_duration_seconds_bucket{method="ModelStreamInfer",model="m",le="+Inf"} 5
braid_request_duration_seconds_bucket{method="Step",model="m",le="+Inf"} 99
braid_queue_rows{model="m"} 7
braid_training_loss{trainer="a \\"b\\" c"} 0.25
braid_device_info{device="cuda:0",kind="cuda",gpu="0",uuid="GPU-1"} 1
braid_device_info{device="cpu:0",kind="cpu",gpu="",uuid=""} 1
braid_device_memory_bytes{device="cpu:0",owner="models"} 100
braid_device_memory_bytes{device="cpu:0",owner="trainers"} 20
braid_device_memory_bytes{device="cuda:0",owner="models"} 5
braid_device_memory_bytes{device="cuda:0",owner="cache"} 1e9
braid_gpu_memory_used_bytes{gpu="0",uuid="GPU-1"} 2e9
braid_gpu_memory_total_bytes{gpu="0",uuid="GPU-1"} 8e9
braid_nonsense{ 3 4
"""


def device(name="cpu:0", uptime=10.0, samples=100, hardware="", **busy):
    return Device(name, "cpu", hardware, 1, busy, samples, uptime)


def trainer(name="t", step=10, id="id"):
    return TrainerInfo(
        name=name, model="m", base_version=1, losses=[], optimizer={}, options={},
        devices=("cpu:0", "cpu:1"), step=step, applied_sequence=step, durable_sequence=0,
        accumulated=0, skipped=0, lr=0.1, lrs={"": 0.1},
        memory=(DeviceMemory("cpu:0", 1024, 2048), DeviceMemory("cpu:1", 512, 512)), id=id,
        last_operator="", notes=(),
    )


def job(id="j", state="RUNNING", rows=30, rate=10.0):
    return JobInfo(
        id=id, spec={"kind": "train", "model": "m"}, state=state, reason="", identity="",
        created=None, started=None, ended=None, attempts=1,
        progress=JobProgress(rows, 120, 3, 12, 1, 1, 0.5, rate), result=None,
        cancel_requested=False, trainer="",
    )


def sample(time=1.0, devices=None, models=None, trainers=(), jobs=(), metrics=None, notes=None):
    devices = [device()] if devices is None else devices
    return Sample(
        time, devices[0].uptime_seconds if devices else 0.0, devices, models or {}, trainers, jobs,
        metrics, notes or {},
    )


def counters(successes=0, failures=0, seconds=0.0, queue=0.0, rows=0, batches=0):
    return Counters(successes, failures, seconds, queue, rows, batches)


def test_rates_are_differences_of_two_samples():
    made = view.make(
        sample(1.0, [device(forward=1.0, load=3.0)], {("m", "1"): counters(10, 1, 1.0)},
               [trainer(step=10)]),
        sample(3.0, [device(uptime=12.0, samples=160, forward=1.5, load=3.0, backward=0.9)],
               {("m", "1"): counters(30, 5, 1.2, 0.04, 80, 20)}, [trainer(step=15)], [job()]),
    )  # fmt: skip
    [made_device], [model], [made_trainer], [made_job] = (
        made.devices, made.models, made.trainers, made.jobs,
    )  # fmt: skip
    assert made_device.utilization == pytest.approx(0.7)
    assert list(made_device.phases) == ["backward", "forward"]
    assert made_device.phases == pytest.approx({"backward": 0.45, "forward": 0.25})
    assert made_device.rows_per_second == 30
    assert (model.requests_per_second, model.failures_per_second) == (12, 2)
    assert model.rows_per_batch == 4
    assert model.mean_seconds == pytest.approx(0.01)
    assert model.queue_seconds == pytest.approx(0.002)
    assert made_trainer.steps_per_second == 2.5
    assert made_trainer.memory_bytes == 1536
    assert (made_job.progress, made_job.seconds_left) == (0.25, 9.0)


def test_first_sample_and_restarted_server_have_no_rates():
    busy = {("m", "1"): counters(10, 0, 1.0, rows=10, batches=10)}
    for before in (None, sample(1.0, [device(uptime=500.0, forward=400.0)], busy, [trainer()])):
        made = view.make(before, sample(2.0, [device(forward=1.0)], busy, [trainer()]))
        assert made.seconds is None
        assert made.devices[0].utilization is None
        assert made.models[0].requests_per_second is None
        assert made.trainers[0].steps_per_second is None


def test_versions_of_a_model_that_come_go_and_are_loaded_again():
    before = sample(1.0, models={("m", "1"): counters(50), ("m", "2"): counters(40)})
    now = sample(2.0, models={("m", "2"): counters(3), ("m", "10"): counters(2)})
    [model] = view.make(before, now).models
    assert model.versions == ["2", "10"]
    assert model.requests_per_second == 5


def test_trainer_that_was_restored_or_replaced_has_no_rate():
    for old in (trainer(step=20), trainer(id="other")):
        made = view.make(sample(1.0, trainers=[old]), sample(2.0, trainers=[trainer()]))
        assert made.trainers[0].steps_per_second is None


def test_utilization_is_at_most_1():
    made = view.make(sample(1.0), sample(2.0, [device(uptime=11.0, backward=5.0)]))
    assert made.devices[0].utilization == 1.0


def test_figures_of_the_metrics_port():
    metrics = metrics_port.parse(METRICS)
    assert metrics.latencies == {"m": {0.001: 15, 0.01: 25, float("inf"): 25}}
    assert metrics.queue_rows == {"m": 7}
    assert metrics.losses == {'a "b" c': 0.25}
    assert metrics.memory == {"cpu:0": (120, None), "cuda:0": (2e9, 8e9)}


def test_quantiles_are_interpolated_between_two_samples():
    now = {0.001: 15.0, 0.01: 25.0, float("inf"): 25.0}
    assert metrics_port.quantile(0.5, {}, now) == pytest.approx(0.001 * 12.5 / 15)
    assert metrics_port.quantile(0.99, {}, now) == pytest.approx(0.001 + 0.009 * 9.75 / 10)
    assert metrics_port.quantile(0.5, now, now) is None
    before = {0.001: 15.0, 0.01: 15.0, float("inf"): 15.0}
    assert metrics_port.quantile(0.5, before, now) == pytest.approx(0.0055)
    slow = {**now, float("inf"): 125.0}
    assert metrics_port.quantile(0.5, now, slow) == 0.01


@pytest.fixture
def busy():
    """Many of everything, with a metrics port."""
    names = [f"model-with-a-long-name-{number:02}" for number in range(9)]

    def at(time, factor):
        return sample(
            time,
            [device(f"cuda:{n}", 10 + time, 100 * factor, "NVIDIA H200", forward=0.4 * factor)
             for n in range(8)],
            {(name, "1"): counters(99 * factor, 1, factor, 0.1, 800 * factor, 10 * factor)
             for name in names},
            [trainer(f"trainer-{n}", 10 * factor) for n in range(5)],
            [job(f"job-{n}", state) for n, state in enumerate(["RUNNING", "QUEUED", "FAILED"])],
            Metrics({}, {names[0]: 3}, {"cuda:0": (2**30, 2**37)}, {"trainer-0": 0.5}),
        )  # fmt: skip

    return view.make(at(1.0, 1), at(2.0, 2))


@pytest.mark.parametrize("height", [1, 5, 8, 12, 24, 60])
@pytest.mark.parametrize("width", [20, 40, 80, 100, 200])
def test_screens_fit_and_show_a_row_of_each_table(busy, width, height):
    lines = tables.screen_lines(busy, "server:8001", "", width, height)
    assert len(lines) <= height
    assert all(line.cell_len <= width for line in lines)
    if width >= 80 and height >= 24:
        text = "\n".join(line.plain for line in lines)
        assert all(word in text for word in ("cuda:0", "model-wit", "trainer-0", "job-0"))


def test_screen_of_80_columns(busy):
    lines = [line.plain.rstrip() for line in tables.screen_lines(busy, "s:1", "", 80, 24)]
    assert lines == [
        "braid top  s:1  up 0:12                                                  q quits",
        "",
        "device  busy              phases       rows/s                memory  hardware",
        "cuda:0   40%  ████░░░░░░  forward 40%     100  1.0 GiB of 128.0 GiB  NVIDIA H200",
        "cuda:1   40%  ████░░░░░░  forward 40%     100                     -  NVIDIA H200",
        "cuda:2   40%  ████░░░░░░  forward 40%     100                     -  NVIDIA H200",
        "… 5 more",
        "",
        "model          requests/s  failed/s  rows/s     mean  p50  p99   queued  waiting",
        "model-with-a…          99         0     800  10.1 ms    -    -  0.00 ms        3",
        "model-with-a…          99         0     800  10.1 ms    -    -  0.00 ms        -",
        "model-with-a…          99         0     800  10.1 ms    -    -  0.00 ms        -",
        "… 6 more",
        "",
        "trainer    model  step  steps/s    loss   lr   memory  devices",
        "trainer-0  m        20       10  0.5000  0.1  1.5 KiB  cpu:0,cpu:1",
        "trainer-1  m        20       10       -  0.1  1.5 KiB  cpu:0,cpu:1",
        "trainer-2  m        20       10       -  0.1  1.5 KiB  cpu:0,cpu:1",
        "… 2 more",
        "",
        "job    kind   model  state    done                loss  rows/s  left",
        "job-0  train  m      RUNNING   25%  ██░░░░░░░░  0.5000      10  0:09",
        "job-1  train  m      QUEUED    25%              0.5000       -     -",
        "job-2  train  m      FAILED    25%              0.5000       -     -",
    ]


def test_screen_without_anything():
    empty = view.make(None, sample(devices=[]))
    text = [line.plain for line in tables.screen_lines(empty, "s:1", "", 80, 24)]
    assert text[1] == "no devices, no models, no trainers, no jobs"
    assert [line.plain for line in tables.screen_lines(None, "s:1", "no answer", 80, 24)][1:] == [
        "no answer"
    ]


def test_screen_of_plain_ascii(busy):
    lines = tables.screen_lines(busy, "s:1", "", 80, 24, ascii_only=True)
    assert all(line.plain.isascii() for line in lines)
    assert "####------" in lines[3].plain


def test_notes_say_what_is_not_available():
    made = view.make(None, sample(notes={"jobs": "the server runs\x1b without jobs"}))
    text = [line.plain for line in tables.screen_lines(made, "s:1", "", 80, 24)]
    assert text[1] == "jobs: the server runs  without jobs"
    assert "no models, no trainers" in text
    assert tables.plain_lines(made)[1] == "jobs: the server runs  without jobs"


@pytest.mark.parametrize("seconds, text", [
    (None, "-"), (0.0001234, "0.12 ms"), (0.0123, "12.3 ms"), (0.9994, "999 ms"),
    (0.9996, "1.00 s"), (75.0, "75.0 s"), (7500.0, "7500 s"),
])  # fmt: skip
def test_units_of_times(seconds, text):
    assert tables._seconds_text(seconds) == text


def lines(ended):
    assert (ended.code, ended.err) == (0, "")
    return ended.out.splitlines()


def test_once_prints_tables(call, server):
    assert lines(call("top", "--once", "--interval", 0.1)) == [
        "up for 0:08", "",
        "device  busy  phases  rows/s", "cpu:0      -               -", "",
        "model    version  requests/s  failed/s  rows/s  rows/batch  mean  queued",
        "fashion        2           0         0       0           -     -       -", "",
        "no trainers", "", "no jobs",
    ]


def test_without_a_terminal_tables_are_printed_once(call):
    assert lines(call("top", "--interval", 0.1))[0] == "up for 0:08"


def test_json(call, server):
    [seen] = call("top", "--once", "--json", "--interval", 0.1).events
    assert [device["device"] for device in seen["devices"]] == ["cpu:0"]
    assert (seen["has_metrics"], seen["jobs"], seen["notes"]) == (False, [], {})


def test_running_jobs_come_before_any_number_of_waiting_ones(call, server, tmp_path):
    server.jobs.runs = False
    spec = tmp_path / "spec.yaml"

    def submit(id, priority):
        spec.write_text(job_specs.TRAIN + f"priority: {priority}\n", encoding="utf-8")
        assert call("jobs", "submit", spec, "--id", id).code == 0

    for id in ("runs", "paused", *(f"waits-{number}" for number in range(99))):
        submit(id, 0)
    submit("next", 5)
    server.jobs.jobs["runs"].state = RUNNING
    server.jobs.jobs["paused"].state = PAUSED
    [seen] = call("top", "--once", "--json", "--interval", 0.1).events
    assert [job["job"] for job in seen["jobs"]] == [
        "runs", "next", *(f"waits-{number}" for number in range(99)), "paused",
    ]  # fmt: skip


def test_a_server_without_jobs(call, server):
    for _ in range(2):
        server.fail("ListJobs", grpc.StatusCode.FAILED_PRECONDITION, "the server has no jobs")
    assert "jobs: the server has no jobs" in lines(call("top", "--once", "--interval", 0.1))


def test_a_caller_without_a_role_gets_the_servers_error(call, server):
    server.fail("ListDevices", grpc.StatusCode.UNAUTHENTICATED, "unknown token")
    ended = call("top", "--once")
    assert (ended.code, ended.err) == (1, "braid: unknown token (UNAUTHENTICATED)\n")


def test_wrong_interval(call):
    assert "--interval: 0 is out of range" in call("top", "--interval", 0).err


def test_metrics_port_is_read_from_its_address(call):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(METRICS.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as metrics:
        threading.Thread(target=metrics.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{metrics.server_port}"
        [seen] = call("top", "--once", "--json", "--metrics", address).events
        assert seen["devices"][0]["memory_bytes"] == 120
        wrong = f"http://{address}/none"
        [seen] = call("top", "--once", "--json", "--metrics", wrong).events
        assert seen["notes"] == {"metrics": f"{wrong}: HTTP status 404 (expected 200)"}
        metrics.shutdown()


def test_views_are_json(busy):
    assert dataclasses.asdict(busy)["models"][0]["queue_rows"] == 3
