"""`braid data` against a fake server."""

import braid
from braid.cli.commands.data import _UploadBar


def test_list(call):
    assert call("data", "list").out == "name           size\nsets/\ntrain.parquet  1.5 KiB\n"
    assert call("data", "list", "sets").out == "name  size\n"
    [listed] = call("data", "list", "--json").events
    assert listed["entries"][1] == {"name": "train.parquet", "folder": False, "bytes": 1536}
    ended = call("data", "list", "none")
    assert (ended.code, ended.err) == (1, "braid: directory: there is no 'none' (NOT_FOUND)\n")


def test_show(call, server):
    assert [line.split() for line in call("data", "show", "train.parquet").out.splitlines()] == [
        ["train.parquet", "Parquet,", "3", "rows"],
        ["column", "type", "datatype", "shape", "of", "a", "row"],
        ["id", "int64", "INT64", "[]"],
        ["image", "list<item:", "float>", "FP32", "[-1]"],
        ["name", "string", "-", "-"],
    ]
    server.data.rows = False
    assert call("data", "show", "train.parquet").out.splitlines()[0] == (
        "train.parquet  Parquet, rows unknown (Parquet is counted while a job reads it)"
    )
    [shown] = call("data", "show", "train.parquet", "--json").events
    assert shown["rows"] is None
    assert shown["columns"][2] == {
        "name": "name", "type": "string", "datatype": None, "shape": None,
    }  # fmt: skip


def test_preview(call):
    options = ("--column=name", "--column=image", "--rows=2")
    assert call("data", "preview", "train.parquet", *options).out.splitlines() == [
        "train.parquet  Parquet, 3 rows",
        "name    image",
        "first   [0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.5,0.…",
        "second  [0,1]",
    ]
    [found] = call("data", "preview", "train.parquet", "--json").events
    assert found["first_rows"][2] == {"id": 3, "image": [None, 1], "name": None}
    assert found["columns"][0]["datatype"] == "INT64"
    assert call("data", "preview", "train.parquet", "--rows=0").code == 2


def test_put_and_rm(call, server, tmp_path):
    (tmp_path / "a.npy").write_bytes(b"12345")
    put = ("data", "put", tmp_path / "a.npy", "a.npy")
    assert call(*put).out == "a.npy: stored, 1 file, 5 B; path in jobs: /sets/a.npy\n"
    [again] = call(*put, "--json").events
    assert again == {
        "dataset": "a.npy", "path": "/sets/a.npy", "result": "unchanged", "files": 1, "bytes": 5,
    }  # fmt: skip
    ended = call("data", "put", tmp_path / "none", "none")
    assert (ended.code, "none' does not exist" in ended.err) == (1, True)
    (tmp_path / "a.npy").write_bytes(b"123456")
    ended = call(*put)
    assert (ended.code, "(--overwrite)" in ended.err) == (1, True)
    assert call("data", "rm", "a.npy").out == "a.npy: deleted\n"
    assert call("data", "rm", "a.npy").code == 1


def test_interrupted_put_says_how_to_continue(call, monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    (tmp_path / "a.npy").write_bytes(b"12345")
    monkeypatch.setattr(braid._put_dataset, "_requests", interrupt)
    ended = call("data", "put", tmp_path / "a.npy", "a.npy")
    text = "braid: interrupted: run the same command again to continue\n"
    assert (ended.code, ended.err) == (130, text)


def test_bar_of_an_upload_has_one_kind_of_units(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with _UploadBar(json=False) as bar:
        bar.update("upload", 0, 4 << 20)
        bar.update("upload", 1 << 20, 4 << 20)
        bar.update("upload", 4 << 20, 4 << 20)
    shown = capsys.readouterr().err
    assert "iB/s" in shown and "B/s" not in shown.replace("iB/s", "")
