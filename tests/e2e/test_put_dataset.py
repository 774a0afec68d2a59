"""Uploads of datasets: put, continue, replace and delete them, and run jobs over them."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import braid
import grpc
import numpy as np
import pytest
from e2e.support import auth, durable, jobs, protocol, training_models
from e2e.support.durable import FEATURES
from e2e.support.jobs import JobServer
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.server import run_to_exit

CLASSES, ROWS = 5, 40
PIECE = 1 << 20
QUOTA = 64 << 20
SECONDS = 120


class DatasetServer(JobServer):
    """Accepts datasets in `datasets`, which is not below the first --data_root."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.datasets = directory / "datasets"
        self.replace_flag("--dataset_root", str(self.datasets))
        self.replace_flag("--dataset_quota", str(QUOTA))

    @property
    def uploads(self) -> list[Path]:
        """Staging folders."""
        return sorted((self.datasets / ".braid/uploads").iterdir())

    def wait_for_upload(self, size: int) -> None:
        """Waits until unfinished uploads have `size` bytes: the client's calls run ahead."""
        def received() -> int:
            files = (self.datasets / ".braid/uploads").glob("*/data/**/*")
            return sum(path.stat().st_size for path in files if path.is_file())

        wait_until(lambda: received() >= size)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatasetServer]:
    """Serves a float64 classifier as "fashion", and NormAndDropout as "noisy"."""
    directory = tmp_path_factory.mktemp("datasets")
    training_models.export_model(directory / "models/fashion", "net", "torchscript")
    durable.export_noisy(directory / "models/noisy")
    server = DatasetServer(directory)
    try:
        server.start()
        yield server
        assert server.process.poll() is None, server.log
    finally:
        server.kill()


@pytest.fixture
def client(server: DatasetServer) -> Iterator[braid.Client]:
    with durable.connect(server) as client:
        yield client


@pytest.fixture(autouse=True)
def remove_datasets(server: DatasetServer, client: braid.Client) -> Iterator[None]:
    """Deletes what a test has stored, so that the quota is free."""
    yield
    for path in server.datasets.iterdir():
        if not path.name.startswith("."):
            client.data.delete(path.name)


def write_folder(folder: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    return folder


def same(local: Path, stored: Path) -> bool:
    """Returns whether the files below two folders are equal."""
    def contents(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    return contents(local) == contents(stored)


class Interrupted(Exception):
    pass


class Reports:
    """A progress callback. Calls `act` once, when `limit` bytes are uploaded."""

    def __init__(self, limit: int | None = None, act: Any = None) -> None:
        self.uploaded: list[int] = []
        self._limit, self._act = limit, act

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == "upload":
            self.uploaded.append(done)
            if self._limit is not None and done >= self._limit:
                self._limit = None
                self._act()


def start(server: DatasetServer, files: list[tuple[str, bytes]], name: str = "set") -> Any:
    """Starts an upload with the checksums of other bytes where they are given as (path, bytes)."""
    method = auth.METHODS["StartDatasetUpload"]
    request = protocol.message(method.input_type.full_name)(dataset=name)
    for path, data in files:
        request.files.add(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    with protocol.channel(server.address) as on:
        return auth.call(on, method, request, [])


def send(server: DatasetServer, *pieces: dict[str, Any]) -> tuple[str, str]:
    """Calls PutDataset. Returns the name of the status code and the message."""
    method = auth.METHODS["PutDataset"]
    request = protocol.message(method.input_type.full_name)
    with protocol.channel(server.address) as on:
        stub = on.stream_unary(
            "/braid.v1.DataService/PutDataset",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=protocol.message(method.output_type.full_name).FromString,
        )
        try:
            stub(iter([request(**piece) for piece in pieces]), timeout=SECONDS)
        except grpc.RpcError as error:
            return error.code().name, error.details()
    return "OK", ""


def outcomes(server: DatasetServer, dataset: str) -> list[str]:
    """Returns the outcomes of the uploads of a dataset in the audit log."""
    lines = [
        line for line in server.log.splitlines()
        if "audit" in line and "method=PutDataset " in line and f'dataset="{dataset}"' in line
    ]  # fmt: skip
    return [match[1] for line in lines if (match := re.search(r"outcome=(\w+)", line))]


def test_job_reads_an_uploaded_file(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    table = tmp_path / "rows.parquet"
    jobs.write_table(table, ROWS, np.float64, 10, CLASSES)
    stored = client.data.put(table, "test.parquet")
    assert (stored.result, stored.files, stored.bytes) == ("stored", 1, table.stat().st_size)
    assert client.data.get(stored.path).rows == ROWS
    assert client.data.get("test.parquet").rows == ROWS
    assert "test.parquet" in [each.name for each in client.data.list_datasets()]
    info = client.jobs.infer(
        "fashion",
        data={"path": stored.path, "inputs": {"x": "image"}},
        output={"path": "scores.parquet"},
    ).wait(timeout=SECONDS)
    assert info.result.rows == ROWS


def test_job_reads_an_uploaded_folder(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    x = np.random.default_rng(0).standard_normal((ROWS, FEATURES), np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", np.abs(x[:, :CLASSES]).argmax(1))
    (folder / "_SUCCESS").touch()  # tables and arrays leave it out
    (folder / ".hidden").touch()
    stored = client.data.put(folder, "arrays")
    assert (stored.result, stored.files) == ("stored", 3)
    info = client.jobs.train(
        "noisy",
        data={"path": stored.path, "inputs": {"x": "x"}, "targets": {"target": "y"}},
        loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}, batch_size=8, steps=4,
    ).wait(timeout=SECONDS)  # fmt: skip
    assert info.progress.step == 4


def test_images_keep_their_labels(client: braid.Client, tmp_path: Path) -> None:
    names = {"_a/1.png": 1, "b/_1.png": 1, "b/2.png": 1, ".c/1.png": 1}
    stored = client.data.put(write_folder(tmp_path / "images", names), "images")
    rows = client.data.preview(stored.path, columns=["path", "label"]).rows
    assert [(row["path"], row["label"]) for row in rows] == [
        ("_a/1.png", 0), ("b/2.png", 1), ("b/_1.png", 1),
    ]  # fmt: skip


def test_continues_where_an_earlier_call_stopped(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "big", {"a.bin": 5 * PIECE, "b/c.bin": 100, "d.bin": 0})

    def interrupt() -> None:
        server.wait_for_upload(2 * PIECE)
        raise Interrupted

    with pytest.raises(Interrupted):
        client.data.put(folder, "big", progress=Reports(3 * PIECE, interrupt))
    assert not (server.datasets / "big").exists()
    wait_until(lambda: outcomes(server, "big"))
    assert outcomes(server, "big") == ["CANCELLED"]
    reports = Reports()
    assert client.data.put(folder, "big", progress=reports).result == "stored"
    assert 2 * PIECE <= reports.uploaded[0] < 5 * PIECE
    assert reports.uploaded[-1] == 5 * PIECE + 100
    assert same(folder, server.datasets / "big")
    assert not server.uploads


def test_continues_after_a_broken_connection(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "big", {"a.bin": 3 * PIECE, "b.bin": 5 * PIECE})
    proxy_class = protocol.load_cutting_proxy()
    cuts = [4 * PIECE, PIECE, PIECE // 2]
    with proxy_class(server.address, cuts) as proxy, braid.connect(proxy.address) as cut:
        assert cut.data.put(folder, "big").result == "stored"
        assert proxy.connections > len(cuts)
    assert same(folder, server.datasets / "big")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_continues_after_the_server_ends(
    server: DatasetServer, client: braid.Client, tmp_path: Path, ending: signal.Signals
) -> None:
    folder = write_folder(tmp_path / "big", {"a.bin": 3 * PIECE, "b.bin": 5 * PIECE})

    def end() -> None:
        server.wait_for_upload(4 * PIECE)
        server.start_again(ending)

    reports = Reports(6 * PIECE, end)
    assert client.data.put(folder, "big", progress=reports).result == "stored"
    continued = next(
        after for before, after in zip(reports.uploaded, reports.uploaded[1:]) if after <= before
    )
    assert continued >= 4 * PIECE
    assert same(folder, server.datasets / "big")
    # The checksums of what is stored survive too.
    server.start_again(ending)
    client.wait_ready(SECONDS)
    assert client.data.put(folder, "big").result == "unchanged"


def test_wrong_checksum_is_data_loss(server: DatasetServer, client: braid.Client) -> None:
    upload = start(server, [("a.npy", b"right")]).upload
    code, message = send(server, {"upload": upload, "data": b"wrong"})
    assert code == "DATA_LOSS"
    assert "files[0].sha256: 'a.npy' was received with checksum" in message
    # The file starts again.
    again = start(server, [("a.npy", b"right")])
    assert list(again.received_bytes) == [0]
    assert send(server, {"upload": again.upload, "data": b"right"})[0] == "OK"
    assert (server.datasets / "set/a.npy").read_bytes() == b"right"


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../b", "a/./b", "a\nb", "a\x00b", "", "a//b", "."]
)
def test_path_that_leaves_the_dataset_is_invalid(server: DatasetServer, path: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        start(server, [("ok", b"1"), (path, b"2")])
    assert caught.value.code().name == "INVALID_ARGUMENT"
    assert caught.value.details().startswith("files[1].path: ")
    assert not server.uploads


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", ".braid", "_a", "a\nb", "", "x" * 129])
def test_invalid_name(client: braid.Client, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"PAR1")
    with pytest.raises(braid.InvalidArgument, match="dataset: invalid name") as caught:
        client.data.put(tmp_path / "file", name)
    assert caught.value.field == "dataset"
    with pytest.raises(braid.InvalidArgument):
        client.data.delete(name)


def test_pieces_out_of_order_are_invalid(server: DatasetServer) -> None:
    files = [("a", b"12345"), ("b", b"1")]
    upload = start(server, files).upload
    for piece, wanted in (
        ({"offset": 3, "data": b"45"}, "offset: 3 in 'a' (expected 0)"),
        ({"data": b"123456"}, "data: 6 bytes at offset 0 of 'a' (expected at most 5)"),
        ({"file": 2, "data": b"1"}, "file: 2 (expected 0 to 1)"),
        ({"data": b""}, "data: the upload ended with 0 of 5 bytes of 'a'"),
    ):
        code, message = send(server, {"upload": upload, **piece})
        assert (code, wanted in message) == ("INVALID_ARGUMENT", True), message
    code, message = send(
        server, {"upload": upload, "data": b"12"}, {"file": 1, "data": b"1"}
    )
    assert (code, "file: 1 before file 0" in message) == ("INVALID_ARGUMENT", True), message
    again = start(server, files)
    assert list(again.received_bytes) == [2, 0]
    rest = {"upload": again.upload, "offset": 2, "data": b"345"}
    assert send(server, rest, {"file": 1, "data": b"1"})[0] == "OK"
    code, message = send(server, {"upload": "0" * 64, "data": b"1"})
    assert code == "NOT_FOUND" and "StartDatasetUpload" in message


def test_more_than_the_quota(server: DatasetServer, client: braid.Client, tmp_path: Path) -> None:
    half = write_folder(tmp_path / "half", {"a": QUOTA // 2})
    client.data.put(half, "half")
    too_large = write_folder(tmp_path / "more", {"a": QUOTA // 2 + 1})
    with pytest.raises(braid.ResourceExhausted) as caught:
        client.data.put(too_large, "more")
    for number in (QUOTA // 2 + 1, QUOTA // 2, QUOTA):
        assert f"{number} " in caught.value.message
    assert "--dataset_quota" in caught.value.message
    assert not server.uploads
    metrics = scrape(server.metrics_url)
    assert metrics.value("braid_dataset_bytes") == QUOTA // 2
    assert metrics.value("braid_dataset_quota_bytes") == QUOTA
    client.data.delete("half")
    assert client.data.put(too_large, "more").result == "stored"


def test_equal_dataset_is_unchanged_and_another_one_needs_overwrite(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    before = scrape(server.metrics_url)
    one = write_folder(tmp_path / "one", {"a.npy": 1000})
    two = write_folder(tmp_path / "two", {"b.npy": 1000})
    results = [client.data.put(one, "set").result, client.data.put(one, "set").result]
    with pytest.raises(braid.AlreadyExists, match="dataset: 'set' exists with different files"):
        client.data.put(two, "set")
    results.append(client.data.put(two, "set", overwrite=True).result)
    assert results == ["stored", "unchanged", "replaced"]
    assert same(two, server.datasets / "set")
    after = scrape(server.metrics_url)
    for result in results:
        name = "braid_dataset_uploads_total"
        assert after.value(name, result=result) == before.value(name, result=result) + 1


def test_one_of_two_concurrent_uploads_of_a_name_wins(
    server: DatasetServer, tmp_path: Path
) -> None:
    folders = [write_folder(tmp_path / str(i), {"a": 3 * PIECE, "b": i}) for i in (1, 2)]
    meet = threading.Barrier(2)
    outcomes: list[Any] = [None, None]

    def put(number: int) -> None:
        with durable.connect(server) as client:
            try:
                report = Reports(PIECE, lambda: meet.wait(SECONDS))
                outcomes[number] = client.data.put(folders[number], "set", progress=report).result
            except braid.BraidError as error:
                outcomes[number] = error

    threads = [threading.Thread(target=put, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    [winner] = [number for number, outcome in enumerate(outcomes) if outcome == "stored"]
    assert isinstance(outcomes[1 - winner], braid.AlreadyExists), outcomes
    assert same(folders[winner], server.datasets / "set")
    assert not server.uploads


def test_a_second_upload_of_the_same_files_takes_over(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "big", {"a": 4 * PIECE})

    def overtake() -> None:
        with durable.connect(server) as other:
            assert other.data.put(folder, "set").result == "stored"

    with pytest.raises(braid.Aborted, match="another call continues the upload of 'set'"):
        client.data.put(folder, "set", progress=Reports(2 * PIECE, overtake))
    assert same(folder, server.datasets / "set")


@pytest.mark.parametrize("attempt", range(4))
def test_one_of_several_equal_concurrent_uploads_stores_the_dataset(
    server: DatasetServer, tmp_path: Path, attempt: int
) -> None:
    folder = write_folder(tmp_path / "big", {"a": 8 * PIECE, "b": attempt})
    meet = threading.Barrier(3)
    outcomes: list[Any] = []

    def put() -> None:
        with durable.connect(server) as client:
            try:
                meet.wait(SECONDS)
                outcomes.append(client.data.put(folder, "set").result)
            except braid.BraidError as error:
                outcomes.append(error)

    threads = [threading.Thread(target=put) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert outcomes.count("stored") == 1, outcomes
    for outcome in outcomes:
        assert outcome in ("stored", "unchanged") or (
            isinstance(outcome, braid.Aborted) and "another call" in outcome.message
        ), outcomes
    assert len(outcomes) == 3
    assert same(folder, server.datasets / "set")
    assert not server.uploads


def test_later_start_aborts_an_upload_before_its_first_byte(server: DatasetServer) -> None:
    files = [("a", b"12345")]
    first, second = start(server, files).upload, start(server, files).upload
    code, message = send(server, {"upload": first, "data": b"123"})
    assert code == "ABORTED" and "another call continues the upload of 'set'" in message
    assert send(server, {"upload": second, "data": b"12345"})[0] == "OK"


def test_dataset_of_a_job_cannot_be_deleted(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    table = tmp_path / "rows.parquet"
    jobs.write_table(table, ROWS, np.float32, FEATURES, CLASSES)
    path = client.data.put(table, "used.parquet").path
    job = client.jobs.train(
        "noisy",
        data={"path": path, "inputs": {"x": "image"}, "targets": {"target": "label"}},
        loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}, batch_size=8, epochs=100_000,
    )  # fmt: skip
    with pytest.raises(braid.FailedPrecondition, match=f"is read by jobs .*'{job.id}'"):
        client.data.delete("used.parquet")
    job.cancel()
    wait_until(lambda: job.info().has_ended)
    client.data.delete("used.parquet")
    with pytest.raises(braid.NotFound, match="there is no dataset 'used.parquet'"):
        client.data.delete("used.parquet")


def test_links_are_not_uploaded(client: braid.Client, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", {"a": 1})
    (folder / "b").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="b' is a symbolic link"):
        client.data.put(folder, "set")
    with pytest.raises(ValueError, match="none' does not exist"):
        client.data.put(tmp_path / "none", "set")


def test_command_puts_and_removes(server: DatasetServer, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", {"a.npy": 10})
    put = jobs.braid_json(server, "data", "put", str(folder), "mine")
    assert put == {"dataset": "mine", "path": str(server.datasets / "mine"), "result": "stored",
                   "files": 1, "bytes": 10}  # fmt: skip
    assert jobs.braid_json(server, "data", "rm", "mine") == {"dataset": "mine"}
    path = jobs.braid_json(server, "data", "put", str(folder), "mine")["path"]
    assert jobs.braid_json(server, "data", "rm", path) == {"dataset": path}
    ended = jobs.braid(server, "data", "rm", "mine")
    assert ended.returncode == 1 and "there is no dataset 'mine'" in ended.stdout + ended.stderr


def test_uploads_need_an_admin_and_are_audited(
    server: DatasetServer, client: braid.Client, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    lines = [auth.token_line(role, f"token-{role}", role) for role in ("admin", "train")]
    tokens.write_text("".join(lines))
    directory = tmp_path / "server"
    training_models.export_model(directory / "models/fashion", "net", "torchscript")
    (tmp_path / "file").write_bytes(b"PAR1")
    guarded = DatasetServer(directory)
    guarded.replace_flag("--auth_tokens", str(tokens))
    try:
        guarded.start()
        with braid.connect(guarded.address, token="token-train") as other:
            with pytest.raises(braid.PermissionDenied, match="the role admin"):
                other.data.put(tmp_path / "file", "set")
        with braid.connect(guarded.address, token="token-admin") as admin:
            admin.data.put(tmp_path / "file", "set")
            admin.data.delete("set")
        for method in ("StartDatasetUpload", "PutDataset", "DeleteDataset"):
            wait_until(
                lambda method=method: any(
                    "audit" in line and f"method={method} " in line and 'dataset="set"' in line
                    and "identity=\"admin\"" in line and line.rstrip().endswith("OK")
                    for line in guarded.log.splitlines()
                )
            )
        assert "outcome=PERMISSION_DENIED" in guarded.log
        guarded.stop()
    finally:
        guarded.kill()


def test_server_without_dataset_root_refuses_uploads(tmp_path: Path) -> None:
    training_models.export_model(tmp_path / "models/fashion", "net", "torchscript")
    (tmp_path / "file").write_bytes(b"PAR1")
    with jobs.serving(tmp_path) as server, durable.connect(server) as client:
        with pytest.raises(braid.FailedPrecondition, match="--dataset_root"):
            client.data.put(tmp_path / "file", "set")
        with pytest.raises(braid.FailedPrecondition, match="--dataset_root"):
            client.data.delete("set")


def test_unusable_dataset_root_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "file").touch()
    ended = run_to_exit(
        f"--model_repository={tmp_path / 'models'}", f"--dataset_root={tmp_path / 'file'}"
    )
    assert ended.returncode == 2
    assert "--dataset_root: " in ended.stderr
    assert "is not a writable directory" in ended.stderr


def test_two_servers_cannot_share_a_dataset_root(server: DatasetServer, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    ended = run_to_exit(
        f"--model_repository={tmp_path / 'models'}", f"--dataset_root={server.datasets}",
        "--grpc_port=0", "--metrics_port=0", "--devices=cpu*1",
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--dataset_root: " in ended.stderr and "in use by another server" in ended.stderr
