"""Tensors in the memory of a GPU that a client has allocated: no bytes of them cross the wire."""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
from cuda.bindings import runtime as cuda
from e2e.support import models
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from tritonclient.utils import InferenceServerException

from gpu.target import gpu_only

pytestmark = gpu_only

X = np.random.default_rng(5).standard_normal((50, 784), dtype=np.float32)
LOGITS_BYTES = 50 * 10 * 4


def check(result: tuple) -> object:
    error, *values = result
    assert error == cuda.cudaError_t.cudaSuccess, error
    return values[0] if values else None


def handle_bytes(handle: object) -> bytes:
    return ctypes.string_at(handle.getPtr(), 64)


class Allocation:
    """Memory of GPU 0 and its handle. (tritonclient's module for it wants older CUDA bindings.)"""

    def __init__(self, size: int) -> None:
        check(cuda.cudaSetDevice(0))
        self.pointer = check(cuda.cudaMalloc(size))
        self.handle = base64.b64encode(handle_bytes(check(cuda.cudaIpcGetMemHandle(self.pointer))))

    def write(self, array: np.ndarray, offset: int) -> None:
        kind = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        check(cuda.cudaMemcpy(self.pointer + offset, array.ctypes.data, array.nbytes, kind))
        check(cuda.cudaDeviceSynchronize())

    def read(self, shape: tuple[int, ...], offset: int) -> np.ndarray:
        array = np.zeros(shape, np.float32)
        kind = cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        check(cuda.cudaMemcpy(array.ctypes.data, self.pointer + offset, array.nbytes, kind))
        return array

    def close(self) -> None:
        check(cuda.cudaFree(self.pointer))


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server], devices: str) -> Server:
    return start_server(devices, ("mlp",), ("--allow_client_shared_memory",))


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client
        client.unregister_cuda_shared_memory()


@pytest.fixture
def allocate(client: triton.InferenceServerClient) -> Iterator[Callable[[int], Allocation]]:
    """allocate(size): freed when the server has forgotten it."""
    allocations: list[Allocation] = []

    def make(size: int) -> Allocation:
        allocations.append(Allocation(size))
        return allocations[-1]

    yield make
    client.unregister_cuda_shared_memory()
    for each in allocations:
        each.close()


def test_input_and_output_in_gpu_memory(
    client: triton.InferenceServerClient, allocate: Callable[[int], Allocation]
) -> None:
    source, target = allocate(X.nbytes + 64), allocate(LOGITS_BYTES + 128)
    source.write(X, 64)
    client.register_cuda_shared_memory("in", source.handle, 0, X.nbytes + 64)
    client.register_cuda_shared_memory("out", target.handle, 0, LOGITS_BYTES + 128)
    regions = client.get_cuda_shared_memory_status().regions
    assert {name: (r.device_id, r.byte_size) for name, r in regions.items()} == {
        "in": (0, X.nbytes + 64),
        "out": (0, LOGITS_BYTES + 128),
    }
    tensor = triton.InferInput("x", list(X.shape), "FP32")
    tensor.set_shared_memory("in", X.nbytes, 64)
    output = triton.InferRequestedOutput("logits")
    output.set_shared_memory("out", LOGITS_BYTES + 100, 28)
    result = client.infer("mlp", [tensor], outputs=[output])
    assert not any(result.get_response().raw_output_contents)
    logits = target.read((50, 10), 28)
    assert_close(logits, expected(models.make("mlp"), X), rtol=1e-4, atol=1e-4)


def test_invalid_registrations_are_rejected(
    client: triton.InferenceServerClient, allocate: Callable[[int], Allocation]
) -> None:
    allocation = allocate(4 << 20)
    wrong = base64.b64encode(b"\1" * 64)
    for handle, gpu, size, what in (
        (base64.b64encode(b"short"), 0, 100, "raw_handle"),
        (wrong, 0, 100, "raw_handle"),
        (allocation.handle, -1, 100, "device_id"),
        (allocation.handle, 1000, 100, "device_id"),
        (allocation.handle, 0, 0, "byte_size"),
        (allocation.handle, 0, 1 << 40, "byte_size"),
        (allocation.handle, 0, (4 << 20) + 1, "byte_size"),
    ):
        with pytest.raises(InferenceServerException, match=what):
            client.register_cuda_shared_memory("r", handle, gpu, size)
    assert not client.get_cuda_shared_memory_status().regions
    client.register_cuda_shared_memory("r", allocation.handle, 0, 1 << 20)
    assert "cuda_shared_memory" in client.get_server_metadata().extensions
