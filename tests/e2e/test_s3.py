"""Datasets, outputs of jobs and model repositories in S3."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import braid
import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import durable, jobs, models, s3
from e2e.support.jobs import JobServer, tensor_of
from e2e.support.model_control import ask, write
from e2e.support.polling import wait_until
from e2e.support.s3 import S3
from PIL import Image

ROWS, CLASSES = 60, 5
SECONDS = 60
INPUTS = {"path": "s3://data/tables/test.parquet", "inputs": {"x": "image"}}


class S3Server(JobServer):
    """Serves NormAndDropout as "noisy" with --s3_allow=s3://data/tables,s3://data/out."""

    def __init__(self, directory: Path, service: S3) -> None:
        if not (directory / "models").exists():
            durable.export_noisy(directory / "models/noisy")
        super().__init__(directory)
        self.replace_flag("--s3_allow", "s3://data/tables,s3://data/out/")
        self._environment.update(service.environment)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "test.parquet"
    jobs.write_table(path, ROWS, np.float32, durable.FEATURES, CLASSES)
    return path


@pytest.fixture
def service(table: Path) -> Iterator[S3]:
    """A service with the table as data/tables/test.parquet."""
    with s3.serving("data", "models") as service:
        service.put("data", "tables/test.parquet", table.read_bytes())
        yield service


@contextmanager
def running(tmp_path: Path, service: S3, **flags: str | None) -> Iterator[S3Server]:
    server = S3Server(tmp_path, service)
    for name, value in flags.items():
        server.replace_flag(f"--{name}", value)
    try:
        server.start()
        yield server
        server.stop()
        assert s3.SECRET not in server.log
    finally:
        server.kill()


@pytest.fixture
def server(tmp_path: Path, service: S3) -> Iterator[S3Server]:
    with running(tmp_path, service) as server:
        yield server


@pytest.fixture
def client(server: S3Server) -> Iterator[braid.Client]:
    with durable.connect(server) as client:
        yield client


def score(client: braid.Client, output: str, **options: Any) -> braid.Job:
    return client.jobs.infer(
        "noisy", data=INPUTS, output={"path": output, "keep": ["id"], **options}
    )


def test_jobs_read_and_write_objects(
    service: S3, server: S3Server, client: braid.Client, table: Path
) -> None:
    (server.tables / "test.parquet").write_bytes(table.read_bytes())
    local = client.jobs.infer(
        "noisy", data={**INPUTS, "path": "test.parquet"},
        output={"path": "scores.parquet", "keep": ["id"]},
    ).wait(timeout=SECONDS).result  # fmt: skip
    info = score(client, "s3://data/out/scores.parquet").wait(timeout=SECONDS)
    assert info.result.output == "s3://data/out/scores.parquet"
    written = pq.read_table(io.BytesIO(service.get("data", "out/scores.parquet")))
    expected = pq.read_table(local.output)
    assert written["id"].equals(expected["id"])
    np.testing.assert_allclose(tensor_of(written, "output__0"), tensor_of(expected, "output__0"),
                               rtol=1e-5, atol=1e-6)  # fmt: skip
    assert not any((server.data / "s3_outputs").iterdir())

    score(client, "s3://data/out/arrays/").wait(timeout=SECONDS)
    assert "out/arrays/output__0.npy" in service.keys("data")
    assert not any((server.data / "s3_outputs").iterdir())

    service.put("data", "tables/parts/1.parquet", table.read_bytes())
    service.put("data", "tables/parts/2.parquet", table.read_bytes())
    service.put("data", "tables/parts/_SUCCESS", b"")
    job = client.jobs.train(
        "noisy", data={**INPUTS, "path": "s3://data/tables/parts/", "targets": {"target": "label"}},
        loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}, batch_size=30, epochs=1,
    )  # fmt: skip
    assert job.wait(timeout=SECONDS).result.step == 2 * ROWS / 30
    assert len(service.reads()) == 3  # Later uses read the copies.


def test_trains_on_images_below_a_prefix(tmp_path: Path, service: S3) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 2))
    models.export(tmp_path / "models/net", model, inputs=[torch.zeros(2, 3, 8, 8)])
    for name in ("cat/1", "cat/2", "dog/1", "dog/2"):
        out = io.BytesIO()
        Image.new("RGB", (9, 9), "red" if name.startswith("cat") else "blue").save(out, "PNG")
        service.put("data", f"tables/images/{name}.png", out.getvalue())
    decode = {"image": {"transforms": [{"resize": 8}, {"center_crop": 8}, "to_float"]}}
    with running(tmp_path, service) as server, durable.connect(server) as client:
        job = client.jobs.train(
            "net", data={"path": "s3://data/tables/images", "targets": {"target": "label"},
                         "inputs": {"input": {"column": "image", "decode": decode}}},
            loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}, batch_size=2, epochs=3,
        )  # fmt: skip
        assert job.wait(timeout=SECONDS).result.step == 6


def test_describes_objects(service: S3, client: braid.Client, table: Path) -> None:
    service.put("data", "tables/notes.txt", b"text")
    service.put("data", "tables/parts/1.parquet", table.read_bytes())
    listed = client.data.list_datasets("s3://data/tables")
    assert [(entry.name, entry.is_folder) for entry in listed] == [
        ("parts", True), ("test.parquet", False),
    ]  # fmt: skip
    assert client.data.get("s3://data/tables/test.parquet").rows == ROWS
    preview = client.data.preview("s3://data/tables/parts", columns=["id"], rows=3)
    assert [row["id"] for row in preview.rows] == [1000, 1001, 1002]


@pytest.mark.parametrize("path, words", [
    ("s3://data/secret.parquet", "is not allowed (expected s3://data/tables or s3://data/out"),
    ("s3://data/tables2/x.parquet", "is not allowed"),
    ("s3://data/tables/../secret.parquet", "expected s3://bucket/key"),
    ("s3://data/tables/none.parquet", "'s3://data/tables/none.parquet' does not exist"),
])  # fmt: skip
def test_names_a_path_that_cannot_be_read(client: braid.Client, path: str, words: str) -> None:
    with pytest.raises(braid.BraidError) as caught:
        client.data.get(path)
    assert words in str(caught.value)


def test_names_the_object_instead_of_its_copy(service: S3, client: braid.Client) -> None:
    service.put("data", "tables/cat.jpg", b"jpg")
    with pytest.raises(braid.InvalidArgument) as caught:
        client.data.get("s3://data/tables/cat.jpg")
    assert str(caught.value).startswith("path: unknown format of 's3://data/tables/cat.jpg'")


def test_without_the_flag_no_path_in_s3_is_read(tmp_path: Path, service: S3) -> None:
    with running(tmp_path, service, s3_allow=None) as server, durable.connect(server) as client:
        with pytest.raises(braid.BraidError, match="--s3_allow=s3://BUCKET/PREFIX"):
            client.data.get("s3://data/tables/test.parquet")
        with pytest.raises(braid.BraidError, match="--s3_allow"):
            score(client, "s3://data/out/scores.parquet")
    assert not service.requests


def test_retries_while_the_service_throttles(service: S3, client: braid.Client) -> None:
    service.fail(5, 503, "SlowDown")
    assert client.data.get("s3://data/tables/test.parquet").rows == ROWS
    service.fail(2, 429, "TooManyRequests")
    assert client.data.list_datasets("s3://data/tables")


def test_error_of_the_service_is_not_retried_by_the_client(
    service: S3, client: braid.Client
) -> None:
    service.fault = lambda method, path: (501, "NotImplemented")  # which the server does not retry
    with pytest.raises(braid.FailedPrecondition) as caught:
        client.data.get("s3://data/tables/test.parquet")
    assert "cannot read 's3://data/tables/test.parquet': AWS Error" in str(caught.value)
    assert caught.value.attempts == 1


def test_says_that_credentials_have_expired(service: S3, client: braid.Client) -> None:
    service.fault = lambda method, path: (400, "ExpiredToken")
    with pytest.raises(braid.FailedPrecondition, match="ExpiredToken.*credentials have expired"):
        client.data.get("s3://data/tables/test.parquet")


def test_other_calls_do_not_wait_for_the_check_of_a_new_job(
    service: S3, server: S3Server, client: braid.Client
) -> None:
    checking, answer = threading.Event(), threading.Event()

    def wait(method: str, path: str) -> None:
        if path == "/data/tables/test.parquet":
            checking.set()
            assert answer.wait(SECONDS)

    service.fault = wait
    submitted: list[braid.Job] = []
    submission = threading.Thread(
        target=lambda: submitted.append(score(client, "s3://data/out/first.parquet"))
    )
    submission.start()
    try:
        assert checking.wait(SECONDS)
        assert client.jobs.list_jobs() == []
        with braid.connect(server.address, timeout=0.5) as impatient:
            with pytest.raises(braid.DeadlineExceeded):
                score(impatient, "s3://data/out/second.parquet")
    finally:
        answer.set()
        submission.join()
    third = score(client, "s3://data/out/third.parquet")  # after the call that has ended
    assert [job.id for job in client.jobs.list_jobs()] == [third.id, submitted[0].id]


def test_relative_directories(tmp_path: Path, service: S3) -> None:
    put_model(service, tmp_path / "made", 1, 3)
    root = Path(os.path.relpath(tmp_path))
    flags = {"data_dir": root / "data", "data_root": root / "tables", "output_root": root / "out",
             "dataset_root": root / "sets"}  # fmt: skip
    flags = {name: str(path) for name, path in flags.items()}
    with running(tmp_path, service, **flags) as server, durable.connect(server) as client:
        assert client.data.get("s3://data/tables/test.parquet").rows == ROWS
        info = score(client, "s3://data/out/scores.parquet").wait(timeout=SECONDS)
        assert info.result.rows == ROWS
        info = score(client, "scores.parquet").wait(timeout=SECONDS)
        assert info.result.output == str(tmp_path / "out/scores.parquet")
        local = client.data.put(tmp_path / "out/scores.parquet", "scores.parquet")
        assert client.data.get(local.path).rows == ROWS
    repository = {"s3_allow": None, "model_repository": "s3://models/serving"}
    with running(tmp_path, service, **flags, **repository) as server:
        with triton.InferenceServerClient(server.address) as client:
            assert ask(client, "times") == 3


def test_lists_an_allowed_prefix_without_objects(client: braid.Client, service: S3) -> None:
    assert client.data.list_datasets("s3://data/out") == []
    with pytest.raises(braid.NotFound, match="there are no objects below 's3://data/out/none'"):
        client.data.list_datasets("s3://data/out/none")
    service.client.delete_object(Bucket="data", Key="tables/test.parquet")
    service.client.delete_bucket(Bucket="data")
    with pytest.raises(braid.NotFound, match="cannot list 's3://data/out'"):
        client.data.list_datasets("s3://data/out")


def test_names_what_denies_access(tmp_path: Path, service: S3, client: braid.Client) -> None:
    service.fault = lambda method, path: (403, "ExpiredToken")
    with pytest.raises(braid.BraidError) as caught:
        client.data.get("s3://data/tables/test.parquet")
    assert caught.value.code == grpc.StatusCode.FAILED_PRECONDITION
    assert "s3://data/tables/test.parquet" in str(caught.value)
    with running(tmp_path / "2", service, s3_allow="s3://data") as server:
        pass
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        server._environment.pop(name)
    service.fault = lambda method, path: (403, "AccessDenied")
    server.start()
    try:
        with durable.connect(server) as client, pytest.raises(
            braid.BraidError, match="no credentials were found in AWS_ACCESS_KEY_ID"
        ):
            client.data.get("s3://data/tables/test.parquet")
    finally:
        server.kill()


def test_object_that_changes_while_it_is_read_is_an_error(
    service: S3, client: braid.Client, table: Path
) -> None:
    def change(method: str, path: str) -> None:
        if method == "GET" and path.endswith("test.parquet"):
            service.put("data", "tables/test.parquet", b"other")

    service.fault = change
    with pytest.raises(braid.BraidError, match="changed while it was read") as caught:
        client.data.get("s3://data/tables/test.parquet")
    assert caught.value.code == grpc.StatusCode.ABORTED
    service.fault = lambda method, path: None
    service.put("data", "tables/test.parquet", table.read_bytes())
    assert client.data.get("s3://data/tables/test.parquet").rows == ROWS


def test_copies_survive_a_restart_and_fit_into_the_cache(
    tmp_path: Path, service: S3, table: Path
) -> None:
    size = table.stat().st_size
    service.put("data", "tables/other.parquet", table.read_bytes())
    service.put("data", "tables/large.csv", b"x\n" + b"1\n" * size)
    with running(tmp_path, service, data_cache_bytes=str(size * 3 // 2)) as server:
        for round in range(2):
            with durable.connect(server) as client:
                assert client.data.get("s3://data/tables/test.parquet").rows == ROWS
            if round == 0:
                server.start_again(signal.SIGTERM)
        assert service.reads() == ["/data/tables/test.parquet"]
        with durable.connect(server) as client:
            for name in ("other", "test"):
                assert client.data.get(f"s3://data/tables/{name}.parquet").rows == ROWS
            assert len(service.reads()) == 3  # One copy takes the place of the other.
            with pytest.raises(braid.BraidError, match="expected at most --data_cache_bytes"):
                client.data.get("s3://data/tables/large.csv")
        assert len(list((server.data / "s3/objects").iterdir())) == 1


def test_does_not_replace_an_output(service: S3, client: braid.Client) -> None:
    service.put("data", "out/scores.parquet", b"old")
    with pytest.raises(braid.BraidError, match="already exists"):
        score(client, "s3://data/out/scores.parquet")
    assert service.get("data", "out/scores.parquet") == b"old"
    score(client, "s3://data/out/scores.parquet", overwrite=True).wait(timeout=SECONDS)
    assert service.get("data", "out/scores.parquet")[:4] == b"PAR1"


def test_output_survives_a_crash_during_the_upload(
    tmp_path: Path, service: S3, table: Path
) -> None:
    with running(tmp_path, service) as server:
        uploading = threading.Event()

        def crash(method: str, path: str) -> None:
            if method in ("PUT", "POST") and not uploading.is_set():
                uploading.set()
                server.process.kill()

        service.fault = crash
        with durable.connect(server) as client:
            job = score(client, "s3://data/out/scores.parquet")
            assert uploading.wait(SECONDS)
            server.start_again()
            assert client.jobs.get(job.id).wait(timeout=SECONDS).result.rows == ROWS
        rows = pq.read_table(io.BytesIO(service.get("data", "out/scores.parquet")))
        assert rows["id"].equals(pq.read_table(table)["id"])


def test_uploads_an_output_when_access_is_granted_again(
    service: S3, client: braid.Client, table: Path
) -> None:
    denied: list[str] = []

    def deny(method: str, path: str) -> tuple[int, str] | None:
        if method in ("PUT", "POST") and len(denied) < 2:
            denied.append(path)
            return 403, "AccessDenied"
        return None

    service.fault = deny
    job = score(client, "s3://data/out/later.parquet")
    assert job.wait(timeout=SECONDS).result.rows == ROWS
    assert len(denied) == 2
    assert any("tries again for about 10 minutes" in line.text for line in job.logs())
    assert pq.read_table(io.BytesIO(service.get("data", "out/later.parquet"))).num_rows == ROWS


def put_model(service: S3, directory: Path, version: int, factor: float) -> None:
    write(directory, "times", version, factor)
    service.put_tree("models", "serving", directory)


def test_serves_a_model_repository_in_s3(tmp_path: Path, service: S3) -> None:
    repository = tmp_path / "made"
    put_model(service, repository, 1, 3)
    flags = {
        "s3_allow": None, "model_repository": "s3://models/serving", "model_control_mode": "poll",
        "repository_poll_seconds": "0.2",
    }  # fmt: skip
    with running(tmp_path, service, **flags) as server:
        with triton.InferenceServerClient(server.address) as client:
            assert ask(client, "times") == 3
            write(repository, "times", 2, 5)
            service.put_tree("models", "serving/times/2", repository / "times/2")
            wait_until(lambda: ask(client, "times") == 5)
            assert service.reads().count("/models/serving/times/1/model.pt") == 1
            service.client.delete_object(Bucket="models", Key="serving/times/2/model.pt")
            wait_until(lambda: ask(client, "times") == 3)
        service.fault = lambda method, path: (403, "AccessDenied")
        wait_until(lambda: "cannot update the model repository" in server.log)
        server.start_again(signal.SIGTERM)
        with triton.InferenceServerClient(server.address) as client:
            assert ask(client, "times") == 3
        assert "serving the copy of the model repository" in server.log


def test_loads_models_from_s3_on_request(tmp_path: Path, service: S3) -> None:
    put_model(service, tmp_path / "made", 1, 3)
    flags = {"s3_allow": None, "model_repository": "s3://models/serving"}
    with running(tmp_path, service, model_control_mode="explicit", **flags) as server:
        with triton.InferenceServerClient(server.address) as client:
            put_model(service, tmp_path / "made", 1, 4)
            client.load_model("times")
            assert ask(client, "times") == 4
