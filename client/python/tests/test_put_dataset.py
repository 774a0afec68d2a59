"""Uploads of datasets of a client against a fake server."""

import grpc
import pytest

import braid

PIECE = 1 << 20


@pytest.fixture
def folder(tmp_path):
    """Has 5 pieces in 3 files, an empty file, and names that are skipped."""
    files = {
        "b.npy": b"b" * (2 * PIECE + 1), "sub/a.npy": b"a", "_empty": b"",
        "_sub/x": b"x", ".hidden": b"h", ".sub/x": b"x",
    }  # fmt: skip
    for name, data in files.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "set"


def test_put_a_folder(server, client, folder):
    reports = []
    stored = client.data.put(folder, "set", progress=lambda *report: reports.append(report))
    total = 2 * PIECE + 3
    assert stored == braid.StoredDataset("/sets/set", "stored", 4, total)
    assert server.data.stored["set"] == {
        "_empty": b"", "_sub/x": b"x", "b.npy": b"b" * (2 * PIECE + 1), "sub/a.npy": b"a",
    }  # fmt: skip
    assert reports[0] == ("checksums", 0, total)
    assert [done for stage, done, _ in reports if stage == "upload"] == [
        0, 1, PIECE + 1, 2 * PIECE + 1, 2 * PIECE + 2, total,
    ]  # fmt: skip
    assert client.data.put(folder, "set").result == "unchanged"


def test_put_a_file(server, client, folder):
    assert client.data.put(folder / "sub/a.npy", "a.npy").files == 1
    assert server.data.stored["a.npy"] == {"": b"a"}
    with pytest.raises(braid.AlreadyExists):
        client.data.put(folder, "a.npy")
    assert client.data.put(folder, "a.npy", overwrite=True).result == "replaced"


def test_put_continues_a_broken_upload(server, client, folder):
    server.data.breaks = [2, 2, 1]
    assert client.data.put(folder, "set").result == "stored"
    assert server.data.stored["set"]["b.npy"] == b"b" * (2 * PIECE + 1)
    assert server.data.pieces == 5


def test_put_succeeds_if_another_client_completed_the_upload(server, client, folder):
    server.data.overtakes = {"": b"a"}
    assert client.data.put(folder / "sub/a.npy", "a.npy").result == "unchanged"
    server.data.overtakes = {"": b"b"}
    with pytest.raises(braid.AlreadyExists):
        client.data.put(folder / "sub/a.npy", "other.npy")


def test_put_gives_up_without_progress(server, client, folder):
    attempts = client._channel.retry.attempts
    server.data.breaks = [2, *[0] * (2 * attempts)]
    with pytest.raises(braid.Unavailable):
        client.data.put(folder, "set")
    assert len(server.data.breaks) == 2 * attempts - attempts


def test_put_refuses_what_it_cannot_upload(client, folder, tmp_path):
    (folder / "link").symlink_to(folder / "b.npy")
    with pytest.raises(ValueError, match="link' is a symbolic link"):
        client.data.put(folder, "set")
    with pytest.raises(ValueError, match="none' does not exist"):
        client.data.put(tmp_path / "none", "set")
    (tmp_path / "void").mkdir()
    with pytest.raises(ValueError, match="void' has no files"):
        client.data.put(tmp_path / "void", "set")


@pytest.mark.parametrize(
    ("data", "name"),
    [(b"PAR1", "x"), (b"ARROW1", "x"), (b"\0\0\x08\1", "x"), (b"a", "x.csv"), (b"a", "x.npz"),
     (b"\x1f\x8b\x08", "x-idx3.gz")],
)  # fmt: skip
def test_put_takes_files_of_known_formats(client, tmp_path, data, name):
    (tmp_path / "file").write_bytes(data)
    assert client.data.put(tmp_path / "file", name).result == "stored"


def test_put_refuses_a_file_that_no_job_can_read(server, client, tmp_path):
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(ValueError, match="cat.jpg' has an unknown format .expected a folder of im"):
        client.data.put(tmp_path / "cat.jpg", "cat.jpg")
    (tmp_path / "train.csv").write_bytes(b"a\n1\n")
    with pytest.raises(ValueError, match="name: 'train' has no suffix of a format .*'.csv'"):
        client.data.put(tmp_path / "train.csv", "train")
    assert not server.data.stored


def test_put_notices_that_a_file_became_shorter(client, folder):
    def shorten(stage, done, total):
        if stage == "upload":
            (folder / "b.npy").write_bytes(b"")

    with pytest.raises(ValueError, match="became shorter"):
        client.data.put(folder, "set", progress=shorten)


def test_delete_tolerates_a_lost_reply(server, client, folder):
    client.data.put(folder, "set")
    server.fail("DeleteDataset", grpc.StatusCode.UNAVAILABLE, after=True)
    client.data.delete("set")
    with pytest.raises(braid.NotFound):
        client.data.delete("set")
