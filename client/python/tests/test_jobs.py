"""Jobs of a client against a fake server."""

import asyncio
import math
import threading

import grpc
import pytest

import braid
from braid import _job_progress
from braid._channel import RetryPolicy
from test_job_specs import INFER, TRAIN


def without_kind(spec):
    return {key: value for key, value in spec.items() if key not in ("kind", "model")}


@pytest.fixture
def job(client):
    return client.jobs.submit(TRAIN, id="a")


def test_train_submits_the_spec(client, server):
    job = client.jobs.train("fashion", **without_kind(TRAIN))
    [request] = server.received("SubmitJob")
    assert request.id == job.id
    assert not request.dry_run
    info = job.info()
    assert info.spec == {**TRAIN, "loss": {"name": "cross_entropy"}}
    assert (info.kind, info.model) == ("train", "fashion")


def test_infer_submits_the_spec(client):
    job = client.jobs.infer("fashion", **without_kind(INFER), tags=["nightly"], priority=2)
    assert job.info().spec == {**INFER, "tags": ["nightly"], "priority": 2}


def test_unknown_options_are_errors(client):
    with pytest.raises(ValueError, match="sed: unknown key"):
        client.jobs.train("fashion", **without_kind(TRAIN), sed=1)


def test_info(job):
    info = job.info()
    assert (info.id, info.state, info.identity, info.attempts) == ("a", "SUCCEEDED", "ann", 1)
    assert info.has_ended
    assert info.created.timestamp() == 1.0
    assert info.ended.timestamp() == 3.0
    assert info.progress.rows == info.progress.total_rows == 30
    assert info.progress.loss == 1 / 3
    assert info.result == braid.JobResult(3, {"accuracy": 0.75, "loss": 0.25}, 0, "", 0)


def test_a_queued_job_has_no_result(client, server):
    server.jobs.runs = False
    info = client.jobs.submit(INFER).info()
    assert (info.state, info.result, info.started, info.ended) == ("QUEUED", None, None, None)
    assert not info.has_ended
    assert info.progress.loss is None


def test_lost_reply_of_submit_makes_no_second_job(client, server):
    server.fail("SubmitJob", grpc.StatusCode.UNAVAILABLE, after=True)
    client.jobs.submit(TRAIN)
    assert len(server.jobs.jobs) == 1
    assert len(server.received("SubmitJob")) == 2


def test_other_spec_of_the_same_id_is_an_error(client, job):
    assert client.jobs.submit(TRAIN, id="a").id == "a"
    with pytest.raises(braid.AlreadyExists):
        client.jobs.submit(INFER, id="a")


def test_check_submits_nothing(client, server):
    assert client.jobs.check(TRAIN).progress.total_rows == 30
    assert server.jobs.jobs == {}


def test_get(client, job):
    assert client.jobs.get("a").id == "a"
    with pytest.raises(braid.NotFound, match="'b'"):
        client.jobs.get("b")


def test_list_reads_all_pages(client, server):
    for index in range(5):
        client.jobs.submit(INFER, id=str(index))
    assert [info.id for info in client.jobs.list_jobs()] == ["4", "3", "2", "1", "0"]
    assert [info.id for info in client.jobs.list_jobs(limit=3)] == ["4", "3", "2"]
    assert [info.id for info in client.jobs.list_jobs(oldest_first=True, limit=1)] == ["0"]
    assert client.jobs.list_jobs(states=["QUEUED"]) == []
    assert len(client.jobs.list_jobs(states=["QUEUED", "SUCCEEDED"])) == 5
    with pytest.raises(ValueError, match="states: 'done' "):
        client.jobs.list_jobs(states=["done"])


def test_wait_returns_the_result(job):
    assert job.wait().result.version == 3


def test_wait_raises_if_the_job_fails(client, server):
    server.jobs.failure = "data.path: no file 'x' (NOT_FOUND)"
    with pytest.raises(braid.JobError, match="job 'a' FAILED: data.path: no file") as error:
        client.jobs.submit(TRAIN, id="a").wait()
    assert error.value.info.state == "FAILED"


def test_wait_ends_at_the_timeout(client, server):
    server.jobs.runs = False
    with pytest.raises(braid.DeadlineExceeded, match="job 'b': did not end in time"):
        client.jobs.submit(TRAIN, id="b").wait(timeout=0.3)
    server.jobs.runs = True
    job = client.jobs.submit(TRAIN, id="a")
    server.stop()
    with pytest.raises(braid.DeadlineExceeded):
        job.wait(timeout=0.3)


def test_wait_async_lets_the_event_loop_run(client, server, monkeypatch):
    monkeypatch.setattr("braid.jobs._POLL_SECONDS", 0.01)
    server.jobs.runs = False
    job = client.jobs.submit(TRAIN, id="a")
    other = client.jobs.submit(INFER, id="b")

    async def wait_for_both():
        waiting = asyncio.gather(job.wait_async(), other.wait_async())
        with pytest.raises(braid.DeadlineExceeded, match="job 'a': has not ended after 0.05 s"):
            await job.wait_async(timeout=0.05)
        server.jobs.run("a")
        server.jobs.failure = "broken"
        server.jobs.run("b")
        with pytest.raises(braid.JobError, match="job 'b' FAILED: broken"):
            await waiting
        return await job.wait_async()

    assert asyncio.run(wait_for_both()).result.version == 3


def test_wait_async_waits_for_the_server(client, server, monkeypatch):
    monkeypatch.setattr("braid.jobs._POLL_SECONDS", 0.01)
    job = client.jobs.submit(TRAIN, id="a")
    server.fail("GetJob", grpc.StatusCode.UNAVAILABLE)
    client._channel.retry = RetryPolicy(attempts=1)
    assert asyncio.run(job.wait_async()).state == "SUCCEEDED"
    assert len(server.received("GetJob")) == 2


def test_watch_yields_each_change_once(job, server):
    def states(events):
        return [event.transition.state for event in events if event.transition]

    events = list(job.watch())
    assert states(events) == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert [event.number for event in events] == [1, 2, 2, 2, 3]
    assert [event.progress.rows for event in events if event.progress] == [0, 30]
    assert events[0].transition.before is None
    assert events[1].transition.before == "QUEUED"
    assert states(job.watch(after=2)) == ["SUCCEEDED"]
    server.fail("WatchJob", grpc.StatusCode.UNAVAILABLE)
    assert states(job.watch()) == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert [request.after for request in server.received("WatchJob")] == [0, 2, 0, 1]


def test_metrics_are_read_in_pages(job):
    metrics = job.metrics()
    assert list(metrics) == ["evaluation/loss", "loss"]
    assert metrics["loss"].steps.tolist() == [1, 2, 3]
    assert metrics["loss"].values.tolist() == [1, 1 / 2, 1 / 3]
    assert metrics["evaluation/loss"].steps.tolist() == [3]
    assert list(job.metrics(["loss"], first_step=3)) == ["loss"]
    with pytest.raises(ValueError, match="names: 'loss' "):
        job.metrics("loss")


def test_logs_are_read_in_pages(job):
    lines = job.logs()
    assert [(line.number, line.level) for line in lines] == [
        (1, "info"), (2, "warning"), (3, "error"),
    ]  # fmt: skip
    assert lines[1].text == "slow disk"
    assert [line.number for line in job.logs(after=2)] == [3]


def test_pause_and_resume(client, server):
    server.jobs.runs = False
    job = client.jobs.submit(TRAIN, id="a")
    assert job.pause().state == "PAUSED"
    assert job.resume().state == "QUEUED"
    server.jobs.run("a")
    for change in (job.pause, job.resume):
        with pytest.raises(braid.FailedPrecondition, match="has ended"):
            change()


def test_cancel(client, server):
    server.jobs.runs = False
    job = client.jobs.submit(TRAIN)
    assert job.cancel().state == "CANCELLED"
    with pytest.raises(braid.JobError, match="CANCELLED: cancelled by a user"):
        job.wait()


def test_async_calls_let_the_event_loop_run(client, server):
    server.jobs.runs = False
    job = client.jobs.submit(TRAIN, id="a")
    blocked = threading.Event()
    pause = server.jobs.PauseJob

    def wait_and_pause(request, context):
        assert blocked.wait(10)
        return pause(request, context)

    server.jobs.PauseJob = wait_and_pause

    async def change():
        paused = asyncio.ensure_future(job.pause_async())
        await asyncio.sleep(0)
        assert not paused.done()
        blocked.set()
        assert (await paused).state == "PAUSED"
        assert (await job.info_async()).state == "PAUSED"
        assert (await job.resume_async()).state == "QUEUED"
        assert (await job.cancel_async()).state == "CANCELLED"
        for call in (job.pause_async, job.resume_async):
            with pytest.raises(braid.FailedPrecondition, match="has ended"):
                await call()

    asyncio.run(change())


def test_delete(client, server, job):
    server.fail("DeleteJob", grpc.StatusCode.UNAVAILABLE, after=True)
    job.delete()
    assert server.jobs.jobs == {}
    with pytest.raises(braid.NotFound):
        job.delete()


def test_progress_bar_shows_position_loss_and_time_left(job, capsys):
    job.wait(progress=True)
    progress = braid.JobProgress(
        rows=100, total_rows=1000, step=10, total_steps=100, epoch=1, epochs=5, loss=0.51234,
        rows_per_second=10.0, wait_seconds=0.0, durable_rows=0,
    )  # fmt: skip
    assert _job_progress.figures(progress) == (
        "epoch 1/5  step  10/100  loss 0.5123  10 rows/s  1:30 left"
    )


def test_short_changes_of_the_rate_change_the_time_left_little():
    rate = _job_progress.Rate()
    assert rate.add(100.0, 5.0) == 100.0
    assert rate.add(0.0, 6.0) == 100.0  # The job does not run.
    assert 99 < rate.add(1.0, 5.1) < 100
    assert rate.add(1.0, 90.0) == pytest.approx(1, rel=0.5)
    progress = braid.JobProgress(rows=100, total_rows=1000, rows_per_second=1.0)
    assert _job_progress.figures(progress, 10.0) == "row  100/1000  1 rows/s  1:30 left"


@pytest.mark.parametrize("seconds, text", [
    (0, "0:00"), (59.6, "1:00"), (3600, "1:00:00"), (-3, "0:00"), (math.pi, "0:03"),
])  # fmt: skip
def test_durations(seconds, text):
    assert _job_progress.duration_text(seconds) == text
