"""Integer inputs of an exported program, sent as inputs of one element."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import programs
from e2e.support.server import Server
from torch import Tensor, nn
from torch.export import Dim

ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Scaled(nn.Module):
    """bounded: n must be from 2 to 100."""

    def __init__(self, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded

    def forward(self, x: Tensor, n: int) -> dict[str, Tensor | int]:
        if self.bounded:
            torch._check(n >= 2)
            torch._check(n <= 100)
        return {"y": x * n, "repeated": x.repeat(n, 1), "twice": 2 * n}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("number_inputs")
    repository: Path = directory / "models"
    example = [torch.zeros(3, 4), 3]
    sizes = {"x": {0: Dim("rows", min=1, max=64)}, "n": Dim.DYNAMIC}
    for name, bounded in (("scaled", True), ("any", False)):
        programs.save(repository / name / "1/model.pt2", Scaled(bounded), example, sizes)
    with Server(repository, "cpu*2", directory / "run", data=False) as server:
        with braid.Client(server.address) as client:
            yield client


@pytest.mark.parametrize("model", ["scaled", "any"])
@pytest.mark.parametrize("n", [2, 3, 7, 100])
def test_number_from_the_request_is_used(client: braid.Client, model: str, n: int) -> None:
    outputs = client.infer(model, {"x": ROWS, "n": np.array([n])})
    np.testing.assert_array_equal(outputs["y"], ROWS * np.float32(n))
    np.testing.assert_array_equal(outputs["repeated"], np.tile(ROWS, (n, 1)))


def test_metadata_lists_the_number_as_an_input(client: braid.Client) -> None:
    metadata = client.model_metadata("scaled")
    assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [
        ("x", "FP32", [-1, 4]),
        ("n", "INT64", [1]),
    ]
    assert list(metadata.outputs[1].shape) == [-1, 4]


@pytest.mark.parametrize("n", [1, 101, -5, 2**63 - 1])
def test_number_out_of_exported_bounds_is_rejected(client: braid.Client, n: int) -> None:
    message = rf"'n' has the value {n} .*expected 2 to 100"
    with pytest.raises(braid.errors.InvalidArgument, match=message):
        client.infer("scaled", {"x": ROWS, "n": np.array([n])})


@pytest.mark.parametrize(
    "number", [np.array([1, 2]), np.array([1.5], np.float32), np.array([2], np.int32)]
)
def test_wrong_shape_or_type_is_rejected(client: braid.Client, number: np.ndarray) -> None:
    with pytest.raises(braid.errors.InvalidArgument, match="input 'n'"):
        client.infer("scaled", {"x": ROWS, "n": number})
