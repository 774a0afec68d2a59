"""Messages serialized by hand equal those of protobuf."""

import numpy as np
import pytest

from braid import _requests
from braid._protocol import TRAINING

ARRAYS = {
    "matrix": np.arange(6, dtype="<f4").reshape(2, 3),
    "transposed": np.arange(6, dtype="<i8").reshape(2, 3).T,
    "strided": np.arange(20, dtype="<f8")[::3],
    "big_endian": np.arange(4, dtype=">i4"),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 4), "<f4"),
    "bools": np.array([True, False]),
    "large": np.zeros(100_000, "u1"),
}


@pytest.fixture(params=ARRAYS)
def array(request):
    return ARRAYS[request.param]


def expected(array):
    """Returns protobuf's Step request with `array` as input and 3 as target."""
    little = array.astype(array.dtype.newbyteorder("<"))
    names = {"f4": "FP32", "i8": "INT64", "f8": "FP64", "i4": "INT32", "b1": "BOOL", "u1": "UINT8"}
    request = TRAINING["Step"].request(trainer="t", sequence=300)
    request.inputs.add(
        name="x", datatype=names[little.dtype.str[1:]], shape=array.shape, data=little.tobytes()
    )
    request.targets.add(
        name="y", datatype="INT64", shape=[1], data=np.array([3], "<i8").tobytes()
    )
    return request


def bare():
    return TRAINING["Step"].request(trainer="t", sequence=300)


def test_request_equals_protobufs(array):
    payload = _requests.serialize(bare(), _requests.batch({"x": array}, {"y": np.array([3])}))
    assert TRAINING["Step"].request.FromString(payload) == expected(array)


def test_stream_request_contains_the_request(array):
    tensors = _requests.batch({"x": array}, {"y": np.array([3])})
    payload, start = _requests.serialize_framed("Step", bare(), tensors)
    assert TRAINING["Stream"].request.FromString(payload).step == expected(array)
    assert payload[start:] == _requests.serialize(bare(), tensors)
    assert payload == _requests.frame("Step", payload[start:])


def test_serialized_request_is_a_copy():
    array = np.ones(4, "<f4")
    payload = _requests.serialize(bare(), {"inputs": {"x": array}})
    array[:] = 7
    request = TRAINING["Step"].request.FromString(payload)
    assert request.inputs[0].data == np.ones(4, "<f4").tobytes()
