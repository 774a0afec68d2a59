"""Inference and server information of the client."""

import threading

import numpy as np
import pytest

import braid

X = np.ones((4, 2), np.float32)


def test_infer_sends_inputs_in_order(server, client):
    outputs = client.infer("fashion", {"x": X, "mask": np.array([True] * 4)})
    assert list(outputs) == ["x", "mask"]
    (request,) = server.received("ModelInfer")
    assert (request.model_name, request.model_version) == ("fashion", "")
    assert not request.outputs
    assert [len(data) for data in request.raw_input_contents] == [32, 4]


def test_infer_selects_version_and_outputs(server, client):
    outputs = client.infer("fashion", {"x": X, "y": X}, version=2, outputs=["y"])
    assert list(outputs) == ["y"]
    assert server.received("ModelInfer")[0].model_version == "2"


def test_infer_returns_number_outputs(server, client):
    server.parameters = {
        "rows": ("int64_param", 4),
        "share": ("double_param", 1.0),
        "full": ("bool_param", True),
        "split": ("string_param", "cpu:0=4"),
        "triton_final_response": ("bool_param", True),
        "braid_more": ("bool_param", True),
    }
    outputs = client.infer("fashion", {"x": X})
    np.testing.assert_array_equal(outputs.pop("x"), X)
    assert outputs == {"full": True, "rows": 4, "share": 1.0}
    assert [type(outputs[name]) for name in ("full", "rows", "share")] == [bool, int, float]
    assert client.infer("fashion", {"x": X}, outputs=["rows"]) == {"rows": 4}
    assert list(client.infer("fashion", {"x": X}, outputs=["x"])) == ["x"]


def test_infer_cuts_a_batch_and_joins_the_outputs(server, client):
    x = np.arange(70, dtype=np.float32).reshape(7, 10)
    y = np.arange(7)
    outputs = client.infer("fashion", {"x": x, "y": y}, batch_size=3)
    assert outputs["x"].tolist() == x.tolist()
    assert outputs["y"].tolist() == y.tolist()
    requests = server.received("ModelInfer")
    assert [request.inputs[0].shape[0] for request in requests] == [3, 3, 1]
    # The version of the first reply.
    assert [request.model_version for request in requests] == ["", "2", "2"]
    client.infer("fashion", {"x": x}, batch_size=7)
    assert len(server.received("ModelInfer")) == 4


def test_infer_cuts_what_exceeds_a_message(server, client, monkeypatch):
    monkeypatch.setattr("braid._tensors.MAX_BYTES", 250)
    monkeypatch.setattr("braid._infer.PART_BYTES", 100)
    x = np.zeros((7, 10), np.float32)
    assert client.infer("fashion", {"x": x})["x"].shape == (7, 10)
    client.infer("fashion", {"x": x}, batch_size=100)
    rows = [request.inputs[0].shape[0] for request in server.received("ModelInfer")]
    assert rows == [2, 2, 2, 1, 6, 1]
    with pytest.raises(ValueError, match="inputs: a row has 400 bytes"):
        client.infer("fashion", {"x": np.zeros((2, 100), np.float32)})
    with pytest.raises(ValueError, match="same dim 0"):
        client.infer("fashion", {"x": x, "y": np.zeros(3)})


def test_infer_cuts_along_the_batch_dim(server, client):
    server.batch_dims = {"x": 1, "h": 2}
    given = {"x": np.arange(24.0).reshape(2, 4, 3), "h": np.arange(8.0).reshape(1, 2, 4)}
    reply = client.infer("fashion", given, batch_size=3)
    for name, array in given.items():
        np.testing.assert_array_equal(reply[name], array)
    shapes = [
        [list(tensor.shape) for tensor in request.inputs]
        for request in server.received("ModelInfer")
    ]
    assert shapes == [[[2, 3, 3], [1, 2, 3]], [[2, 1, 3], [1, 2, 1]]]
    with pytest.raises(ValueError, match="the same size of dim 1 of 'x', dim 2 of 'h'"):
        client.infer("fashion", given | {"h": np.zeros((1, 2, 3))}, batch_size=3)


def test_infer_never_cuts_a_batch_whose_rows_may_depend_on_each_other(server, client):
    server.max_batch_size = 0
    with pytest.raises(ValueError, match="batch_size: model 'fashion' does not support splitting"):
        client.infer("fashion", {"x": X}, batch_size=3)
    assert client.infer("fashion", {"x": X}, batch_size=4)["x"].shape == X.shape
    assert server.received("ModelInfer")[0].inputs[0].shape[0] == 4
    with pytest.raises(ValueError, match="batch_size: 0 "):
        client.infer("fashion", {"x": X}, batch_size=0)


def test_infer_cannot_join_numbers(server, client):
    server.parameters = {"rows": ("int64_param", 4)}
    with pytest.raises(ValueError, match="batch_size: output 'rows' is a number"):
        client.infer("fashion", {"x": X}, batch_size=3)


def test_infer_accepts_messages_above_4_mb(client):
    array = np.zeros((3000, 784), np.float32)  # 9 MB, above gRPC's default limit of 4 MB.
    assert client.infer("fashion", {"x": array})["x"].shape == array.shape


def test_max_message_bytes_limits_messages(server):
    with braid.connect(server.address, max_message_bytes=1000) as client:
        client.infer("fashion", {"x": np.zeros((1, 10))})
        with pytest.raises(braid.ResourceExhausted, match="1000"):
            client.infer("fashion", {"x": np.zeros((1, 1000))})


def test_is_ready_reports_server_and_models(server, client):
    assert client.is_ready()
    assert client.is_ready("fashion", version=1)
    assert not client.is_ready("other")
    server.ready = False
    assert not client.is_ready()


def test_wait_ready_polls_until_ready(server):
    server.ready = False
    asked = threading.Event()
    answer = server.ServerReady

    def count(request, context):
        if asked.is_set():
            server.ready = True
        asked.set()
        return answer(request, context)

    server.ServerReady = count
    braid.connect(server.address, wait_ready=10).close()
    assert server.ready


def test_server_metadata_is_returned(client):
    assert client.server_metadata() == braid.ServerMetadata("fake", "1", ("model_repository",))


def test_models_include_failed_ones(client):
    assert client.models() == [
        braid.ModelStatus("fashion", 2, "READY", ""),
        braid.ModelStatus("broken", None, "UNAVAILABLE", "no version"),
    ]


def test_model_metadata_includes_the_origin(server, client):
    metadata = client.model_metadata("fashion", version=2)
    assert server.received("ModelMetadata")[0].version == "2"
    assert (metadata.name, metadata.versions) == ("fashion", (1, 2))
    assert metadata.platform == "pytorch_libtorch"
    assert metadata.inputs == (braid.TensorMetadata("x", "FP32", (-1, 784)),)
    assert metadata.outputs == (braid.TensorMetadata("output__0", "FP32", (-1, 10)),)
    assert metadata.origin == {"trainer": "first"}
    assert server.received("ModelConfig")[0].version == "2"


def test_devices_are_listed(client):
    (device,) = client.devices()
    assert device == braid.Device(
        name="cpu:0", kind="cpu", hardware="", threads=1, busy_seconds={"forward": 2.5},
        samples=20, uptime_seconds=8.0,
    )


def test_every_name_of_the_package_is_found_and_others_are_not():
    assert all(getattr(braid, name) is not None for name in braid.__all__)
    assert set(braid.__all__) <= set(dir(braid))
    assert braid.errors.NotFound is braid.NotFound
    with pytest.raises(AttributeError, match="module 'braid' has no attribute 'nothing'"):
        braid.nothing  # noqa: B018
