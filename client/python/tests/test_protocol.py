"""Messages match proto/ and coexist with those of tritonclient."""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import descriptor_pool

from braid import _protocol

PACKAGE = pathlib.Path(_protocol.__file__).resolve().parent
REPOSITORY = PACKAGE.parents[2]


def test_nothing_is_registered_in_the_default_pool():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("braid.v1.Tensor")


@pytest.mark.parametrize("order", ["braid, tritonclient.grpc", "tritonclient.grpc, braid"])
def test_import_with_tritonclient_works_in_any_order(order):
    pytest.importorskip("tritonclient.grpc")
    subprocess.run([sys.executable, "-c", f"import {order}"], cwd=PACKAGE.parent, check=True)


def test_both_clients_work_in_one_process(server, client):
    tritonclient = pytest.importorskip("tritonclient.grpc")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = tritonclient.InferInput("x", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    with tritonclient.InferenceServerClient(server.address) as triton:
        theirs = triton.infer("fashion", [tensor]).as_numpy("x")
    np.testing.assert_array_equal(client.infer("fashion", {"x": array})["x"], theirs)


def test_descriptors_are_up_to_date(tmp_path):
    if shutil.which("protoc") is None or not (REPOSITORY / "proto").is_dir():
        pytest.skip("needs protoc and the repository")
    generated = tmp_path / "protocol.binpb"
    name = str((PACKAGE / "protocol.binpb").relative_to(REPOSITORY))
    subprocess.run([REPOSITORY / "scripts" / "generate.sh", name, generated], check=True)
    assert generated.read_bytes() == (PACKAGE / "protocol.binpb").read_bytes(), (
        "proto/ has changed: run scripts/generate.sh"
    )
