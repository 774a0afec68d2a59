"""Metadata of the server and its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tritonclient.grpc as triton
from e2e.support.server import Server


@pytest.fixture(scope="module")
def server(serve: Callable[[str], Server]) -> Server:
    return serve("cpu*2")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def tensors(metadata: list) -> list[tuple[str, str, list[int]]]:
    return [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata]


def test_server_is_live_and_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert client.is_model_ready("mlp", "1")


def test_server_metadata(client: triton.InferenceServerClient) -> None:
    metadata = client.get_server_metadata()
    assert metadata.name == "braid"
    assert metadata.version
    # Clients call the methods of a listed extension, so incomplete or disabled extensions are not
    # listed.
    assert list(metadata.extensions) == [
        "classification",
        "logging",
        "model_configuration",
        "model_repository",
        "model_repository(unload_dependents)",
        "parameters",
        "schedule_policy",
        "statistics",
    ]


# With config.pbtxt: its names and dimensions. Without: the module's argument names and the
# example's dimensions. -1 is the batch dimension or another dynamic dimension.
@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("mlp", [("x", "FP32", [-1, 784])], [("logits", "FP32", [-1, 10])]),
        (
            "sentences",
            [("INPUT__0", "INT64", [-1, -1])],
            [("OUTPUT__0", "FP32", [-1, -1, 5])],
        ),
        ("identity_bf16", [("x", "BF16", [-1, -1])], [("y", "BF16", [-1, -1])]),
        ("words", [("words", "INT64", [-1])], [("output__0", "FP32", [-1, 5])]),
        (
            "two_inputs",
            [("a", "FP32", [-1, 4]), ("b", "FP32", [-1, 3])],
            [("output__0", "FP32", [-1, 3])],
        ),
        (
            "two_outputs",
            [("x", "FP32", [-1, 6])],
            [("output__0", "FP32", [-1, 4]), ("output__1", "FP32", [-1, 4])],
        ),
        (
            "named_outputs",
            [("x", "FP32", [-1, 6])],
            [("hidden", "FP32", [-1, 4]), ("total", "FP32", [-1])],
        ),
        ("chain64", [("x", "FP64", [-1, 10])], [("output__0", "FP64", [-1, 5])]),
    ],
)
def test_model_metadata(
    client: triton.InferenceServerClient, model: str, inputs: list, outputs: list
) -> None:
    metadata = client.get_model_metadata(model)
    assert metadata.name == model
    assert list(metadata.versions) == ["1"]
    assert metadata.platform == "pytorch_libtorch"
    assert tensors(metadata.inputs) == inputs
    assert tensors(metadata.outputs) == outputs


def test_model_config_is_the_file(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("mlp").config
    assert config.name == "mlp"
    assert config.max_batch_size == 64
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("x", [784])]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("logits", [10])]


def test_model_config_is_derived_without_a_file(
    client: triton.InferenceServerClient,
) -> None:
    config = client.get_model_config("convnet").config
    assert config.name == "convnet"
    # perf_analyzer and similar tools expect 0 for a model without batch dimension.
    assert config.max_batch_size > 0
    assert [(tensor.name, list(tensor.dims)) for tensor in config.input] == [("x", [1, 28, 28])]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("output__0", [10])]


def test_repository_index_lists_every_model_as_ready(
    client: triton.InferenceServerClient, server: Server
) -> None:
    index = client.get_model_repository_index().models
    names = sorted(path.name for path in server.repository.iterdir())
    assert [(model.name, model.version, model.state) for model in index] == [
        (name, "1", "READY") for name in names
    ]
