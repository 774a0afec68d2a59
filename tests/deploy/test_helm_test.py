"""`helm test` runs a model: the files that it makes, and its command against a real server."""

from __future__ import annotations

import base64
import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.server import BINARY, Server

from deploy.rendering import Manifests, render_minimal


def render_test(model: str, inputs: list[dict]) -> Manifests:
    return render_minimal({"test": {"model": model, "inputs": inputs}})


def files(manifests: Manifests) -> dict[str, bytes]:
    data = manifests.of("ConfigMap", "braid-test")["binaryData"]
    return {name: base64.b64decode(text) for name, text in data.items()}


@pytest.mark.parametrize(
    "datatype, dtype",
    [
        ("BOOL", "bool"), ("INT8", "int8"), ("INT16", "int16"), ("INT32", "int32"),
        ("INT64", "int64"), ("UINT8", "uint8"), ("FP16", "float16"), ("FP32", "float32"),
        ("FP64", "float64"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [[1], [3, 5], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_inputs_are_zeros(datatype: str, dtype: str, shape: list[int]) -> None:
    if np.prod(shape) * np.dtype(dtype).itemsize > 700_000:
        shape = shape[:-1]
    manifests = render_test("m", [{"name": "x.0", "datatype": datatype, "shape": shape}])
    array = np.load(io.BytesIO(files(manifests)["x.0.npy"]))
    assert (array.dtype, array.shape) == (np.dtype(dtype), tuple(shape))
    assert not array.any()


def test_an_image_fits() -> None:
    shape = [1, 3, 224, 224]
    manifests = render_test("m", [{"name": "x", "datatype": "FP32", "shape": shape}])
    assert np.load(io.BytesIO(files(manifests)["x.npy"])).shape == tuple(shape)


def test_no_model_no_test() -> None:
    manifests = render_minimal()
    assert "Pod" not in manifests.kinds()
    assert "braid-test" not in {manifest["metadata"]["name"] for manifest in manifests}


def test_hooks_and_the_way_through_the_network_policy() -> None:
    manifests = render_test("m", [{"name": "x", "datatype": "FP32", "shape": [1]}])
    pod = manifests.of("Pod")
    for manifest in (pod, manifests.of("ConfigMap", "braid-test")):
        assert manifest["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [rule, _] = manifests.of("NetworkPolicy")["spec"]["ingress"]
    wanted = rule["from"][-1]["podSelector"]["matchLabels"].items()
    assert wanted <= pod["metadata"]["labels"].items()


def test_it_infers(start_server: Callable[..., Server], tmp_path: Path) -> None:
    if not BINARY.exists():
        pytest.skip(f"no {BINARY}: run scripts/setup.sh")
    server = start_server("cpu*2", ("mlp",))
    manifests = render_test("mlp", [{"name": "x", "datatype": "FP32", "shape": [2, 784]}])
    for name, data in files(manifests).items():
        (tmp_path / name).write_bytes(data)
    [container] = manifests.of("Pod")["spec"]["containers"]
    assert container["command"] == ["braid"]
    address = f"--server=127.0.0.1:{server.ready['grpc_port']}"
    arguments = [
        address if argument == "--server=braid:8001" else argument.replace("/inputs", str(tmp_path))
        for argument in container["args"]
    ]
    done = subprocess.run(
        [BINARY.with_name("braid"), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "cpu:0" in done.stdout
