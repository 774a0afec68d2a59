"""Number outputs of an exported program, returned as response parameters with the output's name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import programs
from e2e.support.server import Server
from torch import Tensor, nn
from tritonclient.utils import InferenceServerException

CONFIG = """
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
output [
  { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] },
  { name: "rows" data_type: TYPE_INT64 dims: [ 1 ] }
]
"""


class Numbers(nn.Module):
    """Returns numbers of each kind and None. One number depends on the batch."""

    def forward(self, x: Tensor) -> dict[str, Tensor | float | None]:
        return {
            "rows": x.shape[0],
            "y": x * 2,
            "nothing": None,
            "half": 0.5,
            "negative": -3,
            "on": True,
        }


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("number_outputs")
    repository: Path = directory / "models"
    example = [torch.zeros(5, 3)]
    for name in ("numbers", "configured"):
        path = repository / name / "1/model.pt2"
        programs.save(path, Numbers(), example, programs.any_batch(example))
    (repository / "configured/config.pbtxt").write_text(CONFIG)
    flags = ("--cpu_threads=1",)
    with Server(repository, "cpu*2", directory / "run", flags, data=False) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as client:
        yield client


def rows_of(rows: int) -> np.ndarray:
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)


def infer(
    client: triton.InferenceServerClient,
    x: np.ndarray,
    model: str = "numbers",
    outputs: list[triton.InferRequestedOutput] | None = None,
) -> triton.InferResult:
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    return client.infer(model, [given], outputs=outputs)


def numbers_in(result: triton.InferResult) -> dict[str, tuple[str, bool | int | float]]:
    """Returns types and values of the response's parameters."""
    found = {}
    for name, parameter in result.get_response().parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        found[name] = (kind, getattr(parameter, kind))
    return found


@pytest.mark.parametrize("rows", [2, 3, 6])
def test_numbers_are_parameters_and_none_is_omitted(
    client: triton.InferenceServerClient, rows: int
) -> None:
    result = infer(client, rows_of(rows))
    assert numbers_in(result) == {
        "rows": ("int64_param", rows),
        "half": ("double_param", 0.5),
        "negative": ("int64_param", -3),
        "on": ("bool_param", True),
    }
    assert [output.name for output in result.get_response().outputs] == ["y"]
    np.testing.assert_array_equal(result.as_numpy("y"), rows_of(rows) * 2)


def test_numbers_belong_to_the_requests_batch(
    client: triton.InferenceServerClient,
) -> None:
    sizes = [2 + n % 7 for n in range(60)]
    with ThreadPoolExecutor(12) as threads:
        results = list(threads.map(lambda rows: infer(client, rows_of(rows)), sizes))
    assert [numbers_in(result)["rows"] for result in results] == [
        ("int64_param", rows) for rows in sizes
    ]
    for rows, result in zip(sizes, results):
        np.testing.assert_array_equal(result.as_numpy("y"), rows_of(rows) * 2)


def test_metadata_and_configuration_list_only_tensors(
    client: triton.InferenceServerClient,
) -> None:
    assert [output.name for output in client.get_model_metadata("numbers").outputs] == ["y"]
    config = client.get_model_config("numbers").config
    assert [output.name for output in config.output] == ["y"]


@pytest.mark.parametrize(("name", "numbers"), [("y", []), ("rows", ["rows"])])
def test_only_requested_numbers_are_returned(
    client: triton.InferenceServerClient, name: str, numbers: list[str]
) -> None:
    result = infer(client, rows_of(4), outputs=[triton.InferRequestedOutput(name)])
    assert list(numbers_in(result)) == numbers
    assert len(result.get_response().outputs) == (0 if numbers else 1)


@pytest.mark.parametrize("outputs", [None, ["rows", "y"], ["y"], ["rows", "half", "on"]])
def test_python_client_returns_numbers_with_the_arrays(
    address: str, outputs: list[str] | None
) -> None:
    numbers = {"rows": 4, "half": 0.5, "negative": -3, "on": True}
    with braid.connect(address) as client:
        found = client.infer("numbers", {"x": rows_of(4)}, outputs=outputs)
    expected = {name: numbers[name] for name in outputs or numbers if name in numbers}
    if outputs is None or "y" in outputs:
        np.testing.assert_array_equal(found.pop("y"), rows_of(4) * 2)
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in expected.items()
    }


def test_python_client_returns_declared_number_as_array(address: str) -> None:
    with braid.connect(address) as client:
        found = client.infer("configured", {"x": rows_of(4)})
    assert sorted(found) == ["rows", "y"]
    np.testing.assert_array_equal(found["rows"].reshape(-1), [4])


def test_classification_of_a_number_is_rejected(client: triton.InferenceServerClient) -> None:
    wanted = triton.InferRequestedOutput("rows", class_count=2)
    with pytest.raises(InferenceServerException, match=r"outputs\[0\].*'rows' is a number"):
        infer(client, rows_of(4), outputs=[wanted])


def test_number_declared_in_the_configuration_is_a_tensor(
    client: triton.InferenceServerClient,
) -> None:
    result = infer(client, rows_of(4), "configured")
    assert numbers_in(result) == {}
    np.testing.assert_array_equal(result.as_numpy("rows").reshape(-1), [4])
