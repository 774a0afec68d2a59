"""Inference on a GPU equals PyTorch's on the CPU.

float64 to 1e-9. float32 to 1e-4: cuBLAS sums in another order than the CPU's library.
Convolutions in float32 to 1e-2: cuDNN may round their inputs to TF32, with 10 bits of mantissa.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
from e2e.support import models
from e2e.support.inference import assert_close, expected
from e2e.support.oracle import dataset
from e2e.support.server import Server

from gpu.target import DEVICE, ON_CPU, REPLICAS


@pytest.fixture(scope="module")
def client(serve: Callable[[str], Server], devices: str) -> Iterator[braid.Client]:
    with braid.connect(serve(devices).address) as client:
        yield client


@pytest.mark.parametrize("rows", [1, 32, 1000])
@pytest.mark.parametrize(
    ("model", "tolerance"),
    [("mlp", 1e-4), ("mlp64", 1e-9), ("convnet", 1e-2), ("convnet64", 1e-9)],
)
def test_outputs_equal_pytorch(
    client: braid.Client, model: str, tolerance: float, rows: int
) -> None:
    x = dataset(model)[0][:rows].numpy()
    (output,) = client.infer(model, {"x": x}).values()
    assert_close(output, expected(models.make(model), x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (300, 9)])
def test_embedding(client: braid.Client, shape: tuple[int, int]) -> None:
    words = np.random.default_rng(0).integers(0, 1000, shape)
    output = client.infer("sentences", {"INPUT__0": words})["OUTPUT__0"]
    assert_close(output, expected(models.make("sentences"), words), rtol=1e-4, atol=1e-4)


def test_devices_report_their_usage(client: braid.Client, devices: str) -> None:
    count = REPLICAS[devices]
    names = ["cuda:0"] if count == 1 else [f"cuda:0/{number}" for number in range(count)]
    if ON_CPU:
        names = [f"cpu:{number}" for number in range(count)]
    listed = client.devices()
    assert [device.name for device in listed] == names
    assert all(device.kind == DEVICE for device in listed)
    assert ON_CPU or all(device.hardware for device in listed)
