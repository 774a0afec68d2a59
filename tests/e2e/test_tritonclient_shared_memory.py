"""System shared memory: tritonclient's regions, hostile registrations, and truncated regions."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from e2e.support import models
from e2e.support.inference import assert_close, expected, infer, infer_input
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import Server
from tritonclient.utils import InferenceServerException

X = np.random.default_rng(5).standard_normal((200, 784), dtype=np.float32)
LOGITS_BYTES = 200 * 10 * 4


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    names = ("mlp", "slow", "identity_fp32", "two_inputs", "two_outputs")
    flags, no_gpu = ("--allow_client_shared_memory",), {"CUDA_VISIBLE_DEVICES": ""}
    return start_server("cpu*2", names, flags, no_gpu)


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client
        client.unregister_system_shared_memory()


class Region:
    """A tritonclient region, registered under `name`."""

    def __init__(self, client: triton.InferenceServerClient, name: str, size: int) -> None:
        self.key = f"/e2e_{name}_{os.getpid()}_{secrets.token_hex(4)}"
        self.path = Path("/dev/shm" + self.key)
        self.handle = shm.create_shared_memory_region(name, self.key, size)
        client.register_system_shared_memory(name, self.key, size)

    def close(self) -> None:
        shm.destroy_shared_memory_region(self.handle)


@pytest.fixture
def region(client: triton.InferenceServerClient) -> Iterator[Callable[..., Region]]:
    """region(name, size): a registered region that is destroyed after the test."""
    regions: list[Region] = []

    def make(name: str, size: int) -> Region:
        regions.append(Region(client, name, size))
        return regions[-1]

    yield make
    for each in regions:
        each.close()


def shared_input(name: str, shape: tuple, region: str, size: int, offset: int = 0) -> triton.InferInput:
    tensor = triton.InferInput(name, list(shape), "FP32")
    tensor.set_shared_memory(region, size, offset)
    return tensor


def test_input_and_output_in_shared_memory(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    source, target = region("in", X.nbytes + 64), region("out", LOGITS_BYTES + 128)
    shm.set_shared_memory_region(source.handle, [X], offset=64)
    output = triton.InferRequestedOutput("logits")
    output.set_shared_memory("out", LOGITS_BYTES + 100, 28)
    result = client.infer(
        "mlp", [shared_input("x", X.shape, "in", X.nbytes, 64)], outputs=[output]
    )
    described = result.get_output("logits")
    assert described.parameters["shared_memory_region"].string_param == "out"
    assert described.parameters["shared_memory_byte_size"].int64_param == LOGITS_BYTES
    assert described.parameters["shared_memory_offset"].int64_param == 28
    logits = shm.get_contents_as_numpy(target.handle, np.float32, [200, 10], offset=28)
    assert_close(logits, expected(models.make("mlp"), X))


def test_only_one_of_two_outputs_is_in_shared_memory(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    x = X[:3, :6].copy()
    target = region("out", 48)
    shared = triton.InferRequestedOutput("output__0")
    shared.set_shared_memory("out", 48)
    outputs = [shared, triton.InferRequestedOutput("output__1")]
    result = client.infer("two_outputs", [infer_input("x", x)], outputs=outputs)
    logits, probabilities = expected(models.make("two_outputs"), x)
    assert_close(shm.get_contents_as_numpy(target.handle, np.float32, [3, 4]), logits)
    assert_close(result.as_numpy("output__1"), probabilities)


@pytest.mark.parametrize("offset", [1, 2, 3, 7])
def test_unaligned_offset(
    client: triton.InferenceServerClient, region: Callable[..., Region], offset: int
) -> None:
    source = region("in", X.nbytes + 8)
    shm.set_shared_memory_region(source.handle, [X], offset=offset)
    result = client.infer("mlp", [shared_input("x", X.shape, "in", X.nbytes, offset)])
    assert_close(result.as_numpy("logits"), expected(models.make("mlp"), X))


def test_status_and_unregister(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    first = region("a", 100)
    region("b", 200)
    status = client.get_system_shared_memory_status().regions
    assert {name: (r.name, r.byte_size) for name, r in status.items()} == {
        "a": ("a", 100),
        "b": ("b", 200),
    }
    assert status["a"].key == first.key
    client.unregister_system_shared_memory("a")
    assert list(client.get_system_shared_memory_status().regions) == ["b"]
    with pytest.raises(InferenceServerException, match="'a'"):
        client.get_system_shared_memory_status("a")
    client.unregister_system_shared_memory()
    assert not client.get_system_shared_memory_status().regions


def test_inputs_count_as_bytes_in_flight(start_server: Callable[..., Server]) -> None:
    flags = ("--allow_client_shared_memory", f"--max_request_bytes={X.nbytes - 1}")
    server = start_server("cpu*1", ("mlp",), flags)
    with triton.InferenceServerClient(server.address) as client:
        source = Region(client, "in", X.nbytes)
        try:
            shm.set_shared_memory_region(source.handle, [X])
            with pytest.raises(InferenceServerException, match="max_request_bytes") as caught:
                client.infer("mlp", [shared_input("x", X.shape, "in", X.nbytes)])
            assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
            result = client.infer("mlp", [shared_input("x", (199, 784), "in", 199 * 784 * 4)])
            assert_close(result.as_numpy("logits"), expected(models.make("mlp"), X[:199]))
        finally:
            source.close()


def test_extension_is_listed(client: triton.InferenceServerClient) -> None:
    extensions = client.get_server_metadata().extensions
    assert "system_shared_memory" in extensions
    assert "cuda_shared_memory" not in extensions


def test_registering_gpu_memory_needs_a_gpu(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="has no GPU") as caught:
        client.register_cuda_shared_memory("r", b"AAAA", 0, 100)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_unregistering_all_of_one_kind_keeps_the_other(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    region("system", 100)
    client.unregister_cuda_shared_memory()
    client.unregister_cuda_shared_memory("system")
    with pytest.raises(InferenceServerException, match="'system' of this kind"):
        client.get_cuda_shared_memory_status("system")
    assert list(client.get_system_shared_memory_status().regions) == ["system"]


@pytest.mark.parametrize(
    ("key", "offset", "size"),
    [
        ("", 0, 10),
        ("/", 0, 10),
        ("no_slash", 0, 10),
        ("/a/b", 0, 10),
        ("/../etc/passwd", 0, 10),
        ("/..", 0, 10),
        ("/torch_1", 0, 10),
        ("/nccl-x", 0, 10),
        ("/sem.x", 0, 10),
        ("/nosuch_object", 0, 10),
        ("KEY", 0, 0),
        ("KEY", 0, 101),
        ("KEY", 100, 1),
        ("KEY", 2**64 - 1, 2),
        ("KEY", 2, 2**64 - 1),
        ("KEY", 2**63, 2**63),
    ],
)
def test_hostile_registrations_are_rejected(
    server: Server, region: Callable[..., Region], key: str, offset: int, size: int
) -> None:
    key = key.replace("KEY", region("r", 100).key)
    stub = Stub(channel(server.address), "inference.GRPCInferenceService")
    request = message("inference.SystemSharedMemoryRegisterRequest")(
        name="hostile", key=key, offset=offset, byte_size=size
    )
    with pytest.raises(grpc.RpcError) as caught:
        stub.SystemSharedMemoryRegister(request)
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert "errno" not in caught.value.details() and "/dev/shm" not in caught.value.details()


def test_symbolic_link_is_not_followed(
    client: triton.InferenceServerClient, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    link = Path(f"/dev/shm/e2e_link_{os.getpid()}")
    link.symlink_to(tmp_path / "secret")
    try:
        with pytest.raises(InferenceServerException, match="no shared memory"):
            client.register_system_shared_memory("link", "/" + link.name, 100)
    finally:
        link.unlink()


@pytest.mark.parametrize(
    ("size", "offset", "words"),
    [
        (X.nbytes - 4, 0, "shared_memory_byte_size"),
        (X.nbytes, 8, "exceed"),
        (X.nbytes, -4, "exceed"),
        (-4, 0, "exceed"),
        (X.nbytes, 2**63 - 1, "exceed"),
        (2**63 - 1, 2**63 - 1, "exceed"),
    ],
)
def test_out_of_range_regions_are_rejected(
    client: triton.InferenceServerClient,
    region: Callable[..., Region],
    size: int,
    offset: int,
    words: str,
) -> None:
    region("in", X.nbytes)
    with pytest.raises(InferenceServerException, match=words):
        client.infer("mlp", [shared_input("x", X.shape, "in", size, offset)])


def test_unknown_and_duplicate_regions_are_rejected(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    with pytest.raises(InferenceServerException, match="'nosuch'"):
        client.infer("mlp", [shared_input("x", X.shape, "nosuch", X.nbytes)])
    key = region("twice", 100).key
    with pytest.raises(InferenceServerException, match="twice") as caught:
        client.register_system_shared_memory("twice", key, 100)
    assert caught.value.status() == "StatusCode.ALREADY_EXISTS"


def test_too_small_output_region_is_rejected(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    region("out", LOGITS_BYTES)
    output = triton.InferRequestedOutput("logits")
    output.set_shared_memory("out", LOGITS_BYTES - 4)
    with pytest.raises(InferenceServerException, match=str(LOGITS_BYTES)):
        infer(client, "mlp", {"x": X}, outputs=[output])


def test_unregister_while_a_request_uses_the_region(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    x = np.random.default_rng(1).standard_normal((100, 256), dtype=np.float32)
    source = region("in", x.nbytes)
    shm.set_shared_memory_region(source.handle, [x])
    done = threading.Event()
    replies: list = []

    def answered(result: triton.InferResult | None, error: Exception | None) -> None:
        replies.append((result, error))
        done.set()

    # Requests run in order, so the second reports that the first is running.
    client.async_infer("slow", [shared_input("x", x.shape, "in", x.nbytes)], callback=answered)
    infer(client, "slow", {"x": x[:1]})
    client.unregister_system_shared_memory("in")
    assert done.wait(CALL_SECONDS)
    result, error = replies[0]
    assert error is None
    assert_close(result.as_numpy("y"), expected(models.make("slow"), x))


def test_truncated_input_region_is_rejected(
    server: Server, client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    source = region("in", X.nbytes)
    shm.set_shared_memory_region(source.handle, [X])
    os.truncate(source.path, 0)
    for _ in range(2):
        with pytest.raises(InferenceServerException, match="'in' was truncated"):
            client.infer("mlp", [shared_input("x", X.shape, "in", X.nbytes)])
    assert server.process.poll() is None
    assert_close(
        infer(client, "mlp", {"x": X}).as_numpy("logits"), expected(models.make("mlp"), X)
    )


def test_truncated_output_region_is_rejected(
    server: Server, client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    target = region("out", LOGITS_BYTES)
    os.truncate(target.path, 0)
    output = triton.InferRequestedOutput("logits")
    output.set_shared_memory("out", LOGITS_BYTES)
    with pytest.raises(InferenceServerException, match="'out' was truncated"):
        infer(client, "mlp", {"x": X}, outputs=[output])
    assert server.process.poll() is None


def test_region_truncated_while_it_is_read(
    server: Server, client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    x = np.zeros((200, 100_000), np.float32)
    for i in range(5):
        name = f"in{i}"
        source = region(name, x.nbytes)
        done = threading.Event()
        client.async_infer(
            "identity_fp32",
            [shared_input("x", x.shape, name, x.nbytes)],
            callback=lambda result, error: done.set(),
        )
        os.truncate(source.path, 4096 * i)
        assert done.wait(CALL_SECONDS)
    assert server.process.poll() is None
    assert client.is_server_ready()


def test_shared_memory_with_raw_contents(
    client: triton.InferenceServerClient, region: Callable[..., Region]
) -> None:
    """Raw contents exist only for inputs that are not in shared memory."""
    a, b = X[:3, :4].copy(), X[:3, :3].copy()
    source = region("in", a.nbytes)
    shm.set_shared_memory_region(source.handle, [a])
    inputs = [shared_input("a", a.shape, "in", a.nbytes), infer_input("b", b)]
    assert_close(
        client.infer("two_inputs", inputs).as_numpy("output__0"),
        expected(models.make("two_inputs"), a, b),
    )
