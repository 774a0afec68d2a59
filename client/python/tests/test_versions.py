"""Versions of models: list, pins, labels and numbers."""

import datetime

import grpc
import numpy as np
import pytest

import braid

X = np.ones((4, 2), np.float32)


def test_list_versions(server, client):
    server.labels = {"stable": 2}
    first, second, ignored = client.list_versions("fashion")
    assert (first.origin, first.trainer, first.state, first.created) == (
        "exported", "", "idle", None
    )
    assert second == braid.ModelVersion(
        model="fashion", version=2, origin="published", trainer="t", step=7, state="ready",
        reason="", serving=True, pinned=False, labels=("stable",),
        created=datetime.datetime(1970, 1, 1, 0, 0, 1, 500000, datetime.timezone.utc),
        durability="pending", durability_reason="",
    )
    assert (ignored.state, ignored.reason) == ("ignored", "rename the folder to 3")
    assert client.list_versions() == [first, second, ignored]
    with pytest.raises(braid.NotFound, match="unknown model"):
        client.list_versions("other")


def test_pin_is_not_retried(server, client):
    assert client.pin("fashion", 1) == 2
    assert client.list_versions("fashion")[0].pinned
    assert client.unpin("fashion") == 2
    with pytest.raises(braid.NotFound, match="there are: 1, 2"):
        client.pin("fashion", 7)
    server.fail("Pin", grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(braid.Unavailable):
        client.pin("fashion", 1)


def test_set_label(server, client):
    assert client.set_label("fashion", "stable", 1) is None
    assert client.set_label("fashion", "stable", 2) == 1
    assert client.set_label("fashion", "stable", None) == 2
    with pytest.raises(braid.NotFound, match="no label"):
        client.set_label("fashion", "stable", None)


def test_requests_may_name_a_label(server, client):
    client.infer("fashion", {"x": X}, version="stable")
    assert server.received("ModelInfer")[0].model_version == "stable"
    client.is_ready("fashion", version="stable")
    assert server.received("ModelReady")[0].version == "stable"
    client.model_metadata("fashion", version="stable")
    assert server.received("ModelConfig")[0].version == "stable"


def test_delete_version_tolerates_a_lost_reply(server, client):
    client.delete_version("fashion", 2)
    with pytest.raises(braid.NotFound):
        client.delete_version("fashion", 7)
    server.fail("DeleteVersion", grpc.StatusCode.UNAVAILABLE)
    client.delete_version("fashion", 7)


def test_reserve_version(client):
    assert [client.reserve_version("fashion") for _ in range(2)] == [5, 6]


def test_upload_version(server, client, tmp_path):
    contents = {"model.pt2": bytes(range(256)) * 5000, "model.safetensors": b"weights"}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "notes.txt").write_text("stays here")
    for path in (tmp_path, str(tmp_path / "model.pt2")):
        server.uploaded.clear()
        assert client.upload_version("fashion", path) == 3
        assert server.uploaded == contents
    sizes = [len(request.data) for request in server.received("UploadVersion")]
    assert sizes[:3] == [1 << 20, 256 * 5000 - (1 << 20), 7]
    server.fail("UploadVersion", grpc.StatusCode.FAILED_PRECONDITION, "--allow_model_upload")
    with pytest.raises(braid.FailedPrecondition, match="--allow_model_upload"):
        client.upload_version("fashion", tmp_path)


def test_upload_needs_one_model_file(client, tmp_path):
    with pytest.raises(ValueError, match="has no model"):
        client.upload_version("fashion", tmp_path)
    with pytest.raises(ValueError, match="has no model"):
        client.upload_version("fashion", tmp_path / "missing")
    for name in ("model.pt", "model.pt2"):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="has several models"):
        client.upload_version("fashion", tmp_path)


def test_infer_versioned(client):
    result = client.infer_versioned("fashion", {"x": X}, version=3)
    assert (result.version, result.training_step) == (3, 7)
    assert list(result.outputs) == ["x"]
    np.testing.assert_array_equal(result.outputs["x"], X)
    assert list(client.infer("fashion", {"x": X})) == ["x"]
