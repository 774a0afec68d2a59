"""Tests of `helm test`: its input files, and its command on a real server."""

from __future__ import annotations

import base64
import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e.support.auth import Authority, Pair, token_line
from e2e.support.server import BINARY, COMMAND, Server

from deploy.rendering import Manifests, merge, render_minimal


def render_test(model: str, inputs: list[dict], more: dict | None = None) -> Manifests:
    test = {"model": model, "inputs": inputs, "tokenSecret": "test-token"}
    return render_minimal(merge({"test": test}, more or {}))


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


def test_image_sized_input_fits() -> None:
    shape = [1, 3, 224, 224]
    manifests = render_test("m", [{"name": "x", "datatype": "FP32", "shape": shape}])
    assert np.load(io.BytesIO(files(manifests)["x.npy"])).shape == tuple(shape)


def test_no_test_without_a_model() -> None:
    manifests = render_minimal()
    assert "Pod" not in manifests.kinds()
    assert "braid-test" not in {manifest["metadata"]["name"] for manifest in manifests}


def test_pod_is_a_hook_that_the_network_policy_admits() -> None:
    manifests = render_test("m", [{"name": "x", "datatype": "FP32", "shape": [1]}])
    pod = manifests.of("Pod")
    for manifest in (pod, manifests.of("ConfigMap", "braid-test")):
        assert manifest["metadata"]["annotations"]["helm.sh/hook"] == "test"
    [rule, _] = manifests.of("NetworkPolicy")["spec"]["ingress"]
    wanted = rule["from"][-1]["podSelector"]["matchLabels"].items()
    assert wanted <= pod["metadata"]["labels"].items()


def test_pod_has_the_credentials_that_the_server_requires() -> None:
    access = {
        "tls": {"clientCASecret": "clients"},
        "test": {"certificateSecret": "client", "caSecret": "authority"},
    }
    pod = render_test("m", [{"name": "x", "datatype": "FP32", "shape": [1]}], access).of("Pod")
    arguments = pod["spec"]["containers"][0]["args"]
    before = arguments[: arguments.index("infer")]
    assert {"--tls", "--ca=/etc/braid/ca/ca.crt", "--cert=/etc/braid/certificate/tls.crt",
            "--key=/etc/braid/certificate/tls.key", "--token_file=/etc/braid/token/token",
            "--server=braid.models.svc:8001"} <= set(before)  # fmt: skip
    secrets = {
        volume["name"]: (volume["secret"]["secretName"], volume["secret"].get("items"))
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    assert secrets == {
        # Excludes the private key that the Secret may hold.
        "ca": ("authority", [{"key": "ca.crt", "path": "ca.crt"}]),
        "certificate": ("client", None),
        "token": ("test-token", None),
    }


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Contents of the Secrets named in `ACCESS`."""
    authority = Authority(tmp_path_factory.mktemp("authority") / "ca")
    ca = authority.certificate.read_bytes()

    def tls(pair: Pair) -> dict[str, bytes]:
        key, certificate = pair.pem
        return {"tls.key": key, "tls.crt": certificate, "ca.crt": ca}

    return {
        "braid-tls": tls(authority.issue_server()),
        "braid-tokens": {"tokens": token_line("infer:mlp", "secret", "test").encode()},
        "braid-certificates": {"certificates": b"infer:mlp test.example.org\n"},
        "test-token": {"token": b"secret\n"},
        "test-client": tls(authority.issue("DNS:test.example.org")),
    }


def mount(pod: dict, secrets: dict[str, dict[str, bytes]], root: Path) -> None:
    """Writes the mounted Secrets of a pod's first container to folders below `root`."""
    sources = {volume["name"]: volume.get("secret") for volume in pod["volumes"]}
    for mounted in pod["containers"][0]["volumeMounts"]:
        if source := sources.get(mounted["name"]):
            directory = root / mounted["mountPath"].lstrip("/")
            directory.mkdir(parents=True)
            files = secrets[source["secretName"]]
            for key in [item["key"] for item in source.get("items", [])] or files:
                (directory / key).write_bytes(files[key])


MUTUAL = {"tls": {"clientCASecret": "braid-tls"}, "test": {"certificateSecret": "test-client"}}
CERTIFICATES = {"certificatesSecret": "braid-certificates"}
ACCESS = {
    "tokens": {},
    "tokens and mutual TLS": MUTUAL,
    "certificates": merge(
        MUTUAL, {"auth": {**CERTIFICATES, "tokensSecret": ""}, "test": {"tokenSecret": ""}}
    ),
    "a mesh": {"tls": {"secretName": "", "terminatedInFront": True}},
    "everybody": {
        "tls": {"secretName": ""},
        "auth": {"tokensSecret": "", "allowUnauthenticated": True},
        "test": {"tokenSecret": ""},
    },
}


@pytest.mark.parametrize("access", ACCESS.values(), ids=ACCESS.keys())
def test_command_runs_the_model(
    access: dict,
    start_server: Callable[..., Server],
    secrets: dict[str, dict[str, bytes]],
    tmp_path: Path,
) -> None:
    if not BINARY.exists():
        pytest.skip(f"no {BINARY}: run scripts/setup.sh")
    manifests = render_test("mlp", [{"name": "x", "datatype": "FP32", "shape": [2, 784]}], access)
    mount(manifests.pod(), secrets, tmp_path / "server")
    kinds = ("--listen=", "--tls", "--auth", "--allow", "--log")
    flags = (flag for flag in manifests.server()["args"] if flag.startswith(kinds))
    at = [flag.replace("=/etc", f"={tmp_path}/server/etc") for flag in flags]
    server = start_server("cpu*2", ("mlp",), tuple(at))

    pod = manifests.of("Pod")["spec"]
    mount(pod, secrets, tmp_path / "test")
    (tmp_path / "inputs").mkdir()
    for name, data in files(manifests).items():
        (tmp_path / "inputs" / name).write_bytes(data)
    [container] = pod["containers"]
    assert container["command"] == ["braid"]
    arguments = [
        argument.replace("braid.models.svc:8001", server.address)
        .replace("=/etc", f"={tmp_path}/test/etc")
        .replace("=/inputs", f"={tmp_path}/inputs")
        for argument in container["args"]
    ]
    done = subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "cpu:0" in done.stdout
