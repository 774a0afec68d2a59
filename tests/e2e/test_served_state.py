"""Served modules that store their inputs or return their own memory: outputs equal PyTorch's, and
other requests are not affected."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, Optional  # noqa: UP035: TorchScript knows attributes by these

import braid
import numpy as np
import pytest
import torch
from e2e.support import models
from e2e.support.server import Server
from torch import Tensor, nn

WIDTH = 1000
MOST = 8


class RunningMean(nn.Module):
    """Starts with its first input and modifies it in place later."""

    mean: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.mean = None

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean
        if mean is None:
            self.mean = x
            return x
        mean.mul_(0.5).add_(x, alpha=0.5)
        return mean


class Window(nn.Module):
    """Returns the sum of the last three inputs."""

    inputs: List[Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.inputs = []

    def forward(self, x: Tensor) -> Tensor:
        self.inputs.append(x)
        if len(self.inputs) > 3:
            self.inputs.pop(0)
        return torch.stack(self.inputs).sum(0)


class Workspace(nn.Module):
    """Writes its result to memory that it allocates once."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("place", torch.zeros(MOST, 4))

    def forward(self, x: Tensor) -> Tensor:
        place = self.place[: x.size(0)]
        torch.mul(x, 2.0, out=place)
        return place


class Echo(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


ORDERED = "dynamic_batching { preserve_ordering: true }"
STATEFUL: tuple[Callable[[], nn.Module], ...] = (RunningMean, Window)


def config(width: int, most: int, more: str = "") -> str:
    dims = f"dims: [ {width} ]" if most else f"dims: [ 1, {width} ]"
    return f"""max_batch_size: {most}
input [ {{ name: "x" data_type: TYPE_FP32 {dims} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 {dims} }} ]
{more}"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served_state") / "models"
    for make in (*STATEFUL, Echo):
        models.export(folder / make.__name__, make(), config=config(WIDTH, 0))
    models.export(folder / "Workspace", Workspace(), config=config(4, MOST))
    models.export(folder / "OrderedWorkspace", Workspace(), config=config(4, MOST, ORDERED))
    return folder


@pytest.fixture(scope="module", params=["cpu*1", "cpu*2"])
def client(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[braid.Client]:
    with Server(repository, request.param, tmp_path_factory.mktemp("run")) as server:
        with braid.connect(server.address) as connected:
            yield connected


@pytest.mark.parametrize("make", STATEFUL, ids=lambda make: make.__name__)
def test_stored_inputs_outlive_their_requests(
    repository: Path, tmp_path: Path, make: Callable[[], nn.Module]
) -> None:
    """Other requests between the two reuse the memory of the first."""
    module = torch.jit.script(make()).eval()
    numbers = np.random.default_rng(0)
    with (
        Server(repository, "cpu*1", tmp_path) as server,
        braid.connect(server.address) as client,
    ):
        for _ in range(8):
            x = numbers.standard_normal((1, WIDTH), dtype=np.float32)
            with torch.no_grad():
                wanted = module(torch.tensor(x)).numpy().copy()
            actual = client.infer(make.__name__, {"x": x})["y"]
            np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
            other = np.full((1, WIDTH), 777, np.float32)
            np.testing.assert_array_equal(client.infer("Echo", {"x": other})["y"], other)


@pytest.mark.parametrize("name", ["Workspace", "OrderedWorkspace"])
@pytest.mark.parametrize("rows", [1, MOST, MOST + 1, 30, 100])
def test_reused_workspace_does_not_corrupt_split_replies(
    client: braid.Client, name: str, rows: int
) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 4), dtype=np.float32)
    np.testing.assert_array_equal(client.infer(name, {"x": x})["y"], x * 2)


@pytest.mark.parametrize("name", ["Workspace", "OrderedWorkspace"])
def test_reused_workspace_does_not_corrupt_merged_replies(
    client: braid.Client, name: str
) -> None:
    numbers = np.random.default_rng(0)
    requests = [numbers.standard_normal((1 + i % 3, 4), dtype=np.float32) for i in range(300)]
    with ThreadPoolExecutor(16) as pool:
        replies = pool.map(lambda x: client.infer(name, {"x": x})["y"], requests)
        for x, y in zip(requests, replies):
            np.testing.assert_array_equal(y, x * 2)
