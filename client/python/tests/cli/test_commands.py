"""Commands against a fake server: what they print and their exit codes."""

import io
import os
import time

import grpc
import numpy as np
import pytest
from safetensors.numpy import save

import braid


def lines(ended):
    assert (ended.code, ended.err) == (0, "")
    return ended.out.splitlines()


def events(ended):
    assert (ended.code, ended.err) == (0, "")
    return ended.events


def test_models(call, server):
    server.pinned, server.labels = 2, {"stable": 2, "a": 2}
    assert lines(call("models")) == [
        "model    version  state        pin     labels     reason",
        "fashion  2        READY        pinned  a, stable",
        "broken            UNAVAILABLE                     no version",
    ]
    assert events(call("models", "--json")) == [{"models": [
        {"model": "fashion", "version": "2", "state": "READY", "reason": "", "pinned": True,
         "labels": ["a", "stable"]},
        {"model": "broken", "version": "", "state": "UNAVAILABLE", "reason": "no version",
         "pinned": False, "labels": []},
    ]}]


def test_models_of_an_older_server(call, server):
    server.fail("ListVersions", grpc.StatusCode.UNIMPLEMENTED)
    assert lines(call("models"))[1] == "fashion  2        READY"


@pytest.mark.parametrize("arguments", [["fashion"], ["show", "fashion"]])
def test_one_model(call, server, arguments):
    server.labels = {"stable": 2}
    shown = lines(call("models", *arguments))
    assert shown[:5] == [
        "model fashion, versions 1, 2, platform pytorch_libtorch",
        "        name       datatype  shape",
        "input   x          FP32      [-1, 784]",
        "output  output__0  FP32      [-1, 10]",
        "",
    ]
    assert [line.split() for line in shown[5:7]] == [
        ["version", "origin", "state", "files", "pin", "labels", "created", "reason"],
        ["1", "exported", "idle"],
    ]
    assert shown[7].startswith(
        "      2  published by t at step 7  serving  pending       stable  1970-01-01 00:00:01Z"
    )
    assert shown[8].endswith("rename the folder to 3")
    [shown] = events(call("models", *arguments, "--json"))
    versions = shown.pop("all_versions")
    assert shown == {
        "model": "fashion", "versions": ["1", "2"], "platform": "pytorch_libtorch",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 784]}],
        "outputs": [{"name": "output__0", "datatype": "FP32", "shape": [-1, 10]}],
    }
    assert versions[1] == {
        "version": 2, "origin": "published", "trainer": "t", "step": 7, "state": "ready",
        "reason": "", "serving": True, "pinned": False, "labels": ["stable"], "created": 1.5,
        "durability": "pending", "durability_reason": "",
    }
    assert [version["state"] for version in versions] == ["idle", "ready", "ignored"]


def test_a_model_without_a_served_version(call, server):
    server.fail("ModelMetadata", grpc.StatusCode.NOT_FOUND)
    assert lines(call("models", "show", "broken"))[0] == "model broken, no version is served"


def test_pin_and_unpin(call, server):
    assert lines(call("models", "pin", "fashion", 1)) == [
        "fashion serves version 1 (until now: version 2)",
        "version 1 is pinned: later exports and uploads are not served until the next publish or: "
        "braid models unpin fashion",
    ]
    assert events(call("models", "pin", "fashion", 1, "--json")) == [
        {"model": "fashion", "version": 1, "previous_version": 2}
    ]
    assert server.pinned == 1
    assert lines(call("models", "unpin", "fashion")) == ["fashion serves version 2, the newest"]
    assert events(call("models", "unpin", "fashion", "--json")) == [
        {"model": "fashion", "version": 2}
    ]
    ended = call("models", "pin", "fashion", 3)
    assert (ended.code, ended.err) == (1, "braid: there are: 1, 2 (NOT_FOUND)\n")


def test_labels(call, server):
    assert lines(call("models", "label", "fashion", "stable", 1)) == ["fashion stable: version 1"]
    assert lines(call("models", "label", "fashion", "stable", 2)) == [
        "fashion stable: version 2 (until now: version 1)"
    ]
    assert events(call("models", "label", "fashion", "stable", "--remove", "--json")) == [
        {"model": "fashion", "label": "stable", "version": None, "previous_version": 2}
    ]
    assert server.labels == {}
    for arguments, problem in (
        ([], "missing (give a version, or --remove)"),
        ([1, "--remove"], "given with --remove (give only one of them)"),
    ):
        ended = call("models", "label", "fashion", "stable", *arguments)
        assert (ended.code, ended.err) == (2, f"braid: VERSION: {problem}\n")


def test_delete_version(call):
    assert lines(call("models", "delete", "fashion", 1)) == ["fashion: deleted version 1"]
    assert events(call("models", "delete", "fashion", 1, "--json")) == [
        {"model": "fashion", "version": 1}
    ]


def test_upload(call, server, tmp_path):
    ended = call("models", "upload", "fashion", tmp_path)
    assert ended.code == 1 and "has no model (expected model.pt or model.pt2" in ended.err
    (tmp_path / "model.pt").write_bytes(b"script")
    assert lines(call("models", "upload", "fashion", tmp_path)) == [
        f"fashion: uploaded {tmp_path} as version 3"
    ]
    assert server.uploaded == {"model.pt": b"script"}
    assert events(call("models", "upload", "fashion", tmp_path / "model.pt", "--json")) == [
        {"model": "fashion", "version": 3, "serving": True}
    ]
    server.pinned = 2
    assert lines(call("models", "upload", "fashion", tmp_path)) == [
        f"fashion: uploaded {tmp_path} as version 3; not served: version 2 is pinned"
    ]


def test_devices(call):
    assert lines(call("devices")) == [
        "device  kind  threads  hardware  samples   busy  forward",
        "cpu:0   cpu         1  -              20  31.2%    31.2%",
        "up for 8 s; shares are of that time",
    ]
    assert events(call("devices", "--json")) == [{"uptime_seconds": 8.0, "devices": [{
        "device": "cpu:0", "kind": "cpu", "threads": 1, "hardware": "", "samples": 20,
        "busy_seconds": {"forward": 2.5},
    }]}]


def test_trainers(call, client):
    assert lines(call("trainers")) == [
        "trainer  model  step  applied  durable  skipped  lr  memory"
    ]
    client.create_trainer("fashion", loss="mse", optimizer="SGD")
    assert lines(call("trainers"))[1] == (
        "fashion  fashion     0        0        0        0  0.1, ^head 0.01  cpu:0 10 B (peak 20 B)"
    )
    assert events(call("trainers", "--json")) == [{"trainers": [{
        "trainer": "fashion", "model": "fashion", "base_version": 1, "step": 0,
        "applied_sequence": 0, "durable_sequence": 0, "skipped": 0, "lr": 0.1,
        "lrs": {"": 0.1, "^head": 0.01}, "devices": ["cpu:0", "cpu:1"],
        "on_disk": False,
        "memory": [{"device": "cpu:0", "current_bytes": 10, "peak_bytes": 20}],
    }]}]


def test_delete_trainer_asks_on_a_terminal(call, client, server, monkeypatch):
    client.create_trainer("fashion", loss="mse", optimizer="SGD")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    ended = call("trainers", "delete", "fashion")
    assert ended.code == 130 and "Delete trainer fashion and its checkpoints?" in ended.err
    assert list(server.trainers) == ["fashion"]
    assert lines(call("trainers", "delete", "fashion", "--yes")) == ["fashion: deleted"]
    assert server.trainers == {}
    ended = call("trainers", "delete", "fashion", "--yes")
    assert (ended.code, ended.err) == (1, "braid: no trainer 'fashion' (NOT_FOUND)\n")


def test_rollback_says_that_it_pins(call):
    assert lines(call("rollback", "fashion", 1)) == [
        "fashion serves version 1 (until now: version 2)",
        "version 1 is pinned: later exports and uploads are not served until the next publish or: "
        "braid models unpin fashion",
    ]
    assert lines(call("rollback", "fashion", 2)) == ["fashion serves version 2 (as before)"]
    assert events(call("rollback", "fashion", 1, "--json")) == [
        {"model": "fashion", "version": 1, "previous_version": 2, "pinned": True}
    ]


def test_checkpoints(call, client, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    client.create_trainer("fashion", loss="mse", optimizer="SGD", name="t")
    name = "step-000000000-sequence-000000000"
    assert lines(call("checkpoints", "save", "t")) == [
        f"saved {name}: step 0, sequence 0, 1000 B"
    ]
    assert lines(call("checkpoints", "list", "t")) == [
        f"checkpoint{' ' * 23}  step  sequence    size               written",
        f"{name}     0         0  1000 B  1970-01-01 00:00:01Z",
    ]
    one = {"checkpoint": name, "step": 0, "sequence": 0, "bytes": 1000, "created": 1.5}
    assert events(call("--json", "checkpoints", "list", "t")) == [{"checkpoints": [one]}]
    assert events(call("checkpoints", "save", "t", "--json")) == [one]
    for arguments in ([], [name]):
        assert events(call("checkpoints", "restore", "t", *arguments, "--json")) == [one]
    monkeypatch.undo()
    time.tzset()


def test_wait_for_the_server_is_reported(call, server, monkeypatch):
    monkeypatch.setattr(braid._channel, "_SILENT_SECONDS", 0.0)
    server.fail("ListDevices", grpc.StatusCode.UNAVAILABLE, "restarting")
    ended = call("devices", "--json")
    assert ended.code == 0 and ended.events
    away, back = ended.err.splitlines()
    assert away == f"braid: warning: {server.address}: waiting for the server (restarting)"
    assert back.startswith(f"braid: warning: {server.address}: reconnected (after ")


def test_download(call, client, server, tmp_path):
    client.create_trainer("fashion", loss="mse", optimizer="SGD", name="t")
    path = tmp_path / "t.pt"
    assert lines(call("download", "t", path)) == [f"wrote {path}, 100 B"]
    assert path.read_bytes() == server.file
    assert events(call("download", "t", path, "--format=safetensors", "--json")) == [
        {"file": str(path), "format": "safetensors", "bytes": 100}
    ]
    assert events(call("download", "t", tmp_path / "1", "--json")) == [
        {"file": str(tmp_path / "1"), "format": None, "bytes": 100}
    ]
    assert [request.format for request in server.received("DownloadModel")] == [1, 2, 1]
    server.trainable_file = save({"head.weight": np.zeros(3, np.float32)})
    path = tmp_path / "head.safetensors"
    ended = call("download", "t", path, "--trainable-only", "--json")
    assert events(ended) == [
        {"file": str(path), "format": "safetensors", "bytes": path.stat().st_size}
    ]
    assert server.received("DownloadModel")[-1].format == 4
    ended = call("download", "t", tmp_path / "head.pt", "--trainable-only")
    assert ended.code == 2
    assert "(expected a name that ends in .safetensors)" in ended.err
    for name, code, problem in (
        ("1", 1, "1: not empty (expected a new or an empty folder)"),
        ("t.onnx", 2, "unknown suffix (expected .pt, .safetensors, .pt2 or a folder; other suffixes "
         "need --format)"),
    ):  # fmt: skip
        ended = call("download", "t", tmp_path / name)
        assert ended.code == code
        assert problem in ended.err
    ended = call("download", "t", tmp_path / "none" / "t.pt")
    assert ended.code == 1
    assert "No such file or directory" in ended.err


def test_evaluate_sends_batches(call, client, server, data):
    client.create_trainer("fashion", loss="mse", optimizer="SGD", name="t")
    ended = call("evaluate", "t", *data, "--batch-size", 2, "--metric", "accuracy")
    assert lines(ended)[0] == "metric    value"
    [result] = events(call("evaluate", "t", *data, "--metric", "top_k", "--k", 3, "--json"))
    assert result["rows"] == 5
    calls = server.received("Evaluate")
    assert [list(call.metrics) for call in calls if call.trainer] == [["accuracy"], ["top_k"]]
    assert [call.inputs[0].shape[0] for call in calls] == [2, 2, 1, 5]


def test_infer_prints_small_outputs(call, save):
    x = save("x", np.arange(4, dtype=np.float32).reshape(2, 2))
    assert lines(call("infer", "echo", "--input", f"x={x}"))[1:] == [
        "x  FP32  [2, 2]", "[[0, 1],", " [2, 3]]"
    ]
    big = save("big", np.zeros((51, 2), np.float32))
    assert lines(call("infer", "echo", "--input", f"x={big}"))[1:] == ["x  FP32  [51, 2]"]
    [result] = events(call("infer", "echo", "--input", f"x={big}", "--json"))
    assert result["outputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [51, 2], "data": [0.0] * 102}
    ]


def test_infer_sends_files_to_decode(call, server, tmp_path):
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    image = f"image=@{tmp_path / 'cat.jpg'}"
    call("infer", "echo", "--input", image, "--input", image)
    [request] = server.received("ModelInfer")
    assert (request.inputs[0].datatype, list(request.inputs[0].shape)) == ("BYTES", [2])
    assert request.raw_input_contents[0] == b"\2\0\0\0\xff\xd8" * 2


def test_infer_writes_outputs(call, save, tmp_path):
    x, out = save("x", np.arange(3)), tmp_path / "out.npy"
    arguments = ["infer", "echo", "--input", f"x={x}", "--output", f"x={out}"]
    assert lines(call(*arguments))[1:] == ["x  INT64  [3]"]
    np.testing.assert_array_equal(np.load(out), np.arange(3))
    [result] = events(call(*arguments, "--json"))
    assert result["outputs"] == [{"name": "x", "datatype": "INT64", "shape": [3]}]
    ended = call("infer", "echo", "--input", f"x={x}", "--output", f"y={out}")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "braid: --output: unknown output 'y' (the model has: x)\n"


def test_infer_reports_the_split(call, server, save):
    server.parameters = {"split": ("string_param", "cpu:0=2,cuda:1/0=1")}
    x = save("x", np.zeros((3, 1)))
    arguments = ["infer", "echo", "--input", f"x={x}", "--split", "--model-version", 7]
    assert lines(call(*arguments))[-4:] == [
        "device    rows  in        out",
        "cpu:0        2  x [2, 1]  x [2, 1]",
        "cuda:1/0     1  x [1, 1]  x [1, 1]",
        "total        3  x [3, 1]  x [3, 1]",
    ]
    [result] = events(call(*arguments, "--json"))
    assert result["split"] == [{"device": "cpu:0", "rows": 2}, {"device": "cuda:1/0", "rows": 1}]
    for request in server.received("ModelInfer"):
        assert request.model_version == "7" and request.parameters["report_split"].bool_param


def test_errors_of_the_server_have_their_code(call, server):
    server.fail("RepositoryIndex", grpc.StatusCode.NOT_FOUND, "model: \x1b[1mnone\nhere")
    ended = call("models")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "braid: model:  [1mnone here (NOT_FOUND)\n"


def test_infer_in_several_calls(call, server, save, tmp_path):
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    out = tmp_path / "out.npy"
    arguments = ["infer", "echo", "--input", f"x={save('x', x)}", "--batch-size", 2]
    assert lines(call(*arguments, "--output", f"x={out}"))[1:] == ["x  FP32  [5, 2]"]
    assert np.load(out).tolist() == x.tolist()
    assert len(server.received("ModelInfer")) == 3
    server.parameters = {"split": ("string_param", "cpu:0=1,cpu:1=1")}
    [result] = events(call(*arguments, "--json", "--split"))
    assert result["split"] == [{"device": "cpu:0", "rows": 3}, {"device": "cpu:1", "rows": 3}]
    server.max_batch_size = 0
    ended = call(*arguments)
    assert ended.code == 1
    assert ended.err.startswith("braid: batch_size: model 'echo' does not support splitting")


def test_infer_is_not_sent_again(call, server, save):
    server.fail("ModelInfer", grpc.StatusCode.UNAVAILABLE)
    ended = call("infer", "echo", "--input", f"x={save('x', np.zeros(1))}")
    assert ended.code == 1 and "(UNAVAILABLE)" in ended.err
    assert len(server.received("ModelInfer")) == 1


def test_a_server_that_does_not_answer(run):
    ended = run("--server", "127.0.0.1:1", "models")
    assert ended.code == 1
    assert ended.err.startswith("braid: server: no answer from 127.0.0.1:1: ")
    assert ended.err.endswith(" (UNAVAILABLE)\n")


def test_a_faulty_command_shows_no_traceback(run, monkeypatch):
    monkeypatch.delenv("BRAID_TRACEBACK")
    monkeypatch.setattr(braid, "connect", lambda *_, **__: 1 / 0)
    ended = run("models")
    assert ended.code == 1
    assert ended.err == (
        "braid: internal error: ZeroDivisionError: division by zero (BRAID_TRACEBACK=1 shows "
        "where)\n"
    )


def test_warnings_are_plain_lines(run, monkeypatch):
    monkeypatch.setenv("BRAID_TOKEN", "word")
    ended = run("--server", "192.0.2.1:1", "--timeout", 0.1, "models")
    assert ended.code == 1
    assert ended.err.startswith("braid: warning: ") and os.path.sep + "braid" not in ended.err
