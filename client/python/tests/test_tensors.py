"""Round trips of arrays in all dtypes, strides and byte orders."""

from pathlib import Path

import numpy as np
import pytest

import braid
from braid import _tensors

DATATYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
TORCH_DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
# Exact in bfloat16: both signs, a subnormal, infinity and NaN.
BFLOAT16_VALUES = [0.0, -1.5, 3.0, 2.0**-130, -(2.0**100), np.inf, np.nan]


def sent_datatype(server):
    return server.received("ModelInfer")[-1].inputs[0].datatype


@pytest.mark.parametrize("datatype", DATATYPES)
def test_numpy_round_trip(client, server, datatype):
    array = (np.arange(12).reshape(3, 4) % 5).astype(DATATYPES[datatype])
    output = client.infer("fashion", {"x": array})["x"]
    assert sent_datatype(server) == datatype
    assert output.dtype == array.dtype
    np.testing.assert_array_equal(output, array)


@pytest.mark.parametrize("datatype", TORCH_DATATYPES)
def test_torch_round_trip(client, server, datatype):
    torch = pytest.importorskip("torch")
    tensor = (torch.arange(12).reshape(3, 4) % 5).to(getattr(torch, TORCH_DATATYPES[datatype]))
    output = client.infer("fashion", {"x": tensor})["x"]
    assert sent_datatype(server) == datatype
    np.testing.assert_array_equal(output, tensor.numpy())
    assert output.dtype == tensor.numpy().dtype


@pytest.mark.parametrize("transposed", [False, True])
def test_torch_bfloat16_comes_back_as_float32(client, server, transposed):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([BFLOAT16_VALUES, BFLOAT16_VALUES[::-1]]).to(torch.bfloat16)
    tensor = tensor.t() if transposed else tensor
    output = client.infer("fashion", {"x": tensor})["x"]
    assert sent_datatype(server) == "BF16"
    assert output.dtype == np.float32
    np.testing.assert_array_equal(output, tensor.float().numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_lazily_negated_tensor_is_resolved(client, dtype):
    torch = pytest.importorskip("torch")
    tensor = torch._neg_view(torch.ones(2, 3, dtype=getattr(torch, dtype)))
    np.testing.assert_array_equal(client.infer("fashion", {"x": tensor})["x"], -np.ones((2, 3)))


def test_ml_dtypes_bfloat16_is_supported():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.0, -2.0]], ml_dtypes.bfloat16)
    (tensor,) = _tensors.to_wire({"x": array}, "inputs")
    assert (tensor.datatype, tensor.array.tobytes()) == ("BF16", array.tobytes())


def test_torch_tensor_with_gradient_is_sent(client):
    torch = pytest.importorskip("torch")
    tensor = torch.ones(2, 3, requires_grad=True)
    np.testing.assert_array_equal(client.infer("fashion", {"x": tensor})["x"], np.ones((2, 3)))


@pytest.mark.parametrize("view", [
    lambda a: a.T,
    lambda a: a[:, ::2],
    lambda a: a[::-1],
    lambda a: np.asfortranarray(a),
    lambda a: np.broadcast_to(a[0], (5, 6)),
    lambda a: a[:0],
    lambda a: a[0, 0],
], ids=["transposed", "strided", "reversed", "fortran", "broadcast", "no rows", "0-dim"])
def test_any_strides_are_supported(client, view):
    array = view(np.arange(24, dtype=np.float32).reshape(4, 6))
    output = client.infer("fashion", {"x": array})["x"]
    assert output.shape == array.shape
    np.testing.assert_array_equal(output, array)


@pytest.mark.parametrize("dtype", [">f4", "<f4", ">i8", ">f2"])
def test_any_byte_order_is_supported(client, dtype):
    array = np.array([[1, 2, 300]], dtype)
    output = client.infer("fashion", {"x": array})["x"]
    assert output.dtype == array.dtype.newbyteorder("<")
    np.testing.assert_array_equal(output, array)


def test_lists_are_converted_by_numpy(client, server):
    np.testing.assert_array_equal(client.infer("fashion", {"x": [[1, 2]]})["x"], [[1, 2]])
    assert sent_datatype(server) == "INT64"


def test_outputs_are_writable(client):
    output = client.infer("fashion", {"x": np.zeros((1, 2))})["x"]
    output += 1
    assert output.sum() == 2


@pytest.mark.parametrize("array", [
    np.array([1j]), np.array(["2020-01-01"], "M8[D]"),
], ids=["complex", "dates"])
def test_unsupported_dtype_is_rejected(client, server, array):
    with pytest.raises(TypeError, match=r"inputs\['x'\]: unsupported dtype .* \(expected bool"):
        client.infer("fashion", {"x": array})
    assert not server.received("ModelInfer")


def test_sparse_tensor_is_rejected(client):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"inputs\['x'\]: cannot be sent"):
        client.infer("fashion", {"x": torch.eye(3).to_sparse()})


def test_inputs_must_be_a_dict(client):
    with pytest.raises(TypeError, match=r"inputs: a ndarray \(expected a dict of name to array"):
        client.infer("fashion", np.zeros((2, 3)))


@pytest.mark.parametrize("targets", [np.zeros((2, 3)), np.zeros(1), [], 0])
def test_targets_must_be_a_dict(server, client, targets):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    with pytest.raises(TypeError, match=r"targets: a \w+ \(expected a dict of name to array"):
        trainer.step({"x": np.zeros((2, 3))}, targets)
    assert not server.received("Step")


# Images and texts, by how they are given; BYTES on the wire.
ROWS = [b"\xff\xd8\0", "käse".encode(), b""]
CONTENT = b"\x03\0\0\0\xff\xd8\0" + b"\x05\0\0\0" + "käse".encode() + b"\0\0\0\0"


@pytest.mark.parametrize("value", [
    ROWS,
    tuple(ROWS),
    [ROWS[0], "käse", ""],
    np.array(ROWS, object),
    [[row] for row in ROWS],
])
def test_bytes_and_texts_are_sent_as_rows(client, server, value):
    assert client.infer("fashion", {"image": value}, outputs=["y"]) == {}
    [request] = server.received("ModelInfer")
    assert request.inputs[0].datatype == "BYTES"
    assert list(request.inputs[0].shape) == ([3, 1] if value[0] == [ROWS[0]] else [3])
    assert request.raw_input_contents[0] == CONTENT


def test_texts_in_an_array_are_sent_as_rows(client, server):
    client.infer("fashion", {"text": np.array(["a", "bc"])}, outputs=["y"])
    assert server.received("ModelInfer")[-1].raw_input_contents[0] == b"\1\0\0\0a\2\0\0\0bc"


def test_rows_of_bytes_are_cut_into_calls(client, server):
    client.infer("fashion", {"image": ROWS}, outputs=["y"], batch_size=2)
    contents = [each.raw_input_contents[0] for each in server.received("ModelInfer")]
    assert contents == [CONTENT[:-4], CONTENT[-4:]]


@pytest.mark.parametrize(("value", "reason"), [
    (b"\xff\xd8", "one bytes .expected a list"),
    ("a text", "one str .expected a list"),
    ([b"a", 1.5], "a float .expected bytes or str"),
    (np.array([None]), "a NoneType .expected bytes or str"),
    (np.array([b"a\0"]), "drops zeros"),
    (Path("cat.jpg"), "a path .expected a list with the content"),
    ([Path("cat.jpg")], "the path 'cat.jpg' .expected the content of the file"),
    (np.array([b"a", Path("cat.jpg")]), "the path 'cat.jpg' .expected the content of the file"),
])
def test_invalid_rows_of_bytes_are_rejected(client, server, value, reason):
    with pytest.raises(TypeError, match=rf"inputs\['image'\]: .*{reason}"):
        client.infer("fashion", {"image": value})
    assert not server.received("ModelInfer")


def test_training_takes_no_bytes(client, server):
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    with pytest.raises(TypeError, match=r"inputs\['x'\]: unsupported dtype object"):
        trainer.step({"x": np.array(ROWS, object)}, {"target": np.zeros(3)})
    assert not server.received("Step")


def test_oversized_arrays_are_rejected_before_copying(client):
    array = np.broadcast_to(np.uint8(0), (1 << 31,))  # Uses one byte of memory.
    trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD")
    with pytest.raises(ValueError, match=r"2147483656 bytes.*send fewer rows"):
        trainer.step({"x": array}, {"target": np.zeros(1)})


def test_reply_of_the_wrong_size_is_an_internal_error():
    with pytest.raises(braid.Internal, match=r"7 bytes from the server for FP32 of shape \[2\]"):
        _tensors.from_wire("FP32", [2], bytes(7))


def test_reply_of_strings_is_unimplemented():
    with pytest.raises(braid.Unimplemented, match="BYTES"):
        _tensors.from_wire("BYTES", [1], b"\0\0\0\0")
