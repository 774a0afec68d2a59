"""Inputs and outputs in tuples, lists and dicts, and numbers as parameters."""

from __future__ import annotations

import contextlib
import functools
import queue
from collections.abc import Callable, Iterator

import braid
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import models, structured_models, training
from e2e.support.inference import assert_close, infer, infer_input
from e2e.support.protocol import CALL_SECONDS
from e2e.support.server import Server

# More than the models' max_batch_size.
ROWS = 21


@pytest.fixture(scope="module")
def server_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """server_in(format): one server for the models in that format."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(format: str) -> Server:
            directory = tmp_path_factory.mktemp(f"structured-{format}")
            structured_models.export_all(directory / "models", format)
            server = Server(directory / "models", "cpu*2", directory / "run", data=False)
            return stack.enter_context(server)

        yield get


@pytest.fixture(scope="module")
def client(server_in: Callable[[str], Server]) -> Iterator[braid.Client]:
    """A client of the server with the models in TorchScript."""
    with braid.connect(server_in("torchscript").address) as client:
        yield client


@pytest.fixture(scope="module")
def triton_client(
    server_in: Callable[[str], Server],
) -> Iterator[triton.InferenceServerClient]:
    """A tritonclient of the server with the models in TorchScript."""
    with triton.InferenceServerClient(server_in("torchscript").address) as client:
        yield client


def tensor(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, 2)).astype(np.float32)


A, B, C, D = (tensor(seed) for seed in range(4))


def scaled(**numbers: object) -> torch.Tensor:
    return structured_models.scaled()(torch.from_numpy(A), **numbers).detach()


# Model → (inputs, outputs).
CASES = {
    "tupled": ({"pair.0": A, "pair.1": B, "x": C}, {"y": A * 2 - B + C}),
    "tupled_by_number": (
        {"INPUT__0": A, "INPUT__1": B, "INPUT__2": C},
        {"OUTPUT__0": A * 2 - B + C},
    ),
    "tupled_by_example": ({"pair.0": A, "pair.1": B, "x": C}, {"output__0": A * 2 - B + C}),
    "listed": (
        {"parts.0": A, "parts.1": B, "parts.2": C},
        {"total": A + B * 2 + C * 3, "first": A},
    ),
    "listed_by_number": (
        {"INPUT__0": A, "INPUT__1": B},
        {"OUTPUT__0": A + B * 2, "OUTPUT__1": A},
    ),
    "keyed": ({"batch.a": A, "batch.b": B}, {"a": A, "sum": A + B}),
    "keyed_by_key": ({"a": A, "b": B}, {"a": A, "sum": A + B}),
    "keyed_by_example": ({"batch.a": A, "batch.b": B}, {"a": A, "sum": A + B}),
    "nested": (
        {"pair.left": A, "pair.right": B, "more.xs.0": C, "more.xs.1": D},
        {"both.0": C + A, "both.1": D - B},
    ),
    "unmasked": ({"x": A}, {"y": A}),
    "unmasked_by_example": ({"x": A}, {"output__0": A}),
    "masked": ({"x": A, "mask": B}, {"y": A * B}),
    "masked_by_example": ({"mask": B, "x": A}, {"output__0": A * B}),
    # A missing number has its default.
    "scaled": ({"x": A}, {"y": scaled().numpy()}),
    "scaled_by_default": ({"x": A}, {"output__0": scaled().numpy()}),
    "maybe_scaled": ({"x": A}, {"y": A + 3}),
    "scaled_by_example": ({"x": A}, {"output__0": scaled().numpy()}),
    "leaves": (
        {"a": A, "b": B},
        {"both.0": A + B, "both.1": A - B, "swapped.0": B, "swapped.1": A},
    ),
    # None is not an output.
    "auxiliary": ({"x": A}, {"logits": A * 2, "last": A - 1}),
    "auxiliary_by_example": ({"x": A}, {"output__0": A * 2, "output__1": A - 1}),
    "keyed_auxiliary": ({"x": A}, {"logits": A * 2}),
    "keyed_auxiliary_by_example": ({"x": A}, {"logits": A * 2}),
}


@pytest.mark.parametrize(
    ("format", "model"),
    [
        (format, model)
        for format in models.FORMATS
        for model in structured_models.names_in(format)
        if model not in ("demanding", "absent")
    ],
)
def test_every_nested_tensor_has_a_name(
    server_in: Callable[[str], Server], format: str, model: str
) -> None:
    inputs, wanted = CASES[model]
    with braid.connect(server_in(format).address) as client:
        outputs = client.infer(model, inputs)
    assert outputs.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(outputs[name], torch.from_numpy(value))


def test_missing_nested_input_is_named(client: braid.Client) -> None:
    with pytest.raises(braid.InvalidArgument, match=r"'pair\.1' is missing"):
        client.infer("tupled", {"pair.0": A, "x": C})


def test_output_that_is_none_is_named(client: braid.Client) -> None:
    with pytest.raises(braid.FailedPrecondition, match="output 'aux': the model returned None"):
        client.infer("absent", {"x": A})


def test_numbers_are_configuration_parameters_not_inputs(
    triton_client: triton.InferenceServerClient,
) -> None:
    metadata = triton_client.get_model_metadata("scaled")
    assert [tensor.name for tensor in metadata.inputs] == ["x"]
    config = triton_client.get_model_config("scaled").config
    assert [tensor.name for tensor in config.input] == ["x"]
    assert {
        name: value.string_value
        for name, value in config.parameters.items()
        if name.startswith("scalar.")
    } == {
        "scalar.power": "INT64, default 1",
        "scalar.factor": "FP64, default 1",
        "scalar.negate": "BOOL, default false",
    }


def test_numbers_are_request_parameters(
    triton_client: triton.InferenceServerClient,
) -> None:
    result = infer(triton_client, "scaled", {"x": A}, parameters={"power": 3, "negate": True})
    assert_close(result.as_numpy("y"), scaled(power=3, negate=True))


def test_number_may_be_none(triton_client: triton.InferenceServerClient) -> None:
    parameters = triton_client.get_model_config("maybe_scaled").config.parameters
    assert parameters["scalar.factor"].string_value == "FP64, default None"
    given = {"factor": 2.5, "shift": 1}
    result = infer(triton_client, "maybe_scaled", {"x": A}, parameters=given)
    assert_close(result.as_numpy("y"), torch.from_numpy(A * 2.5 + 1))


def test_concurrent_requests_keep_their_numbers(
    triton_client: triton.InferenceServerClient,
) -> None:
    """Sends all requests at once. Only those with equal numbers may be merged."""
    replies: queue.Queue = queue.Queue()
    inputs = [infer_input("x", A)]
    for power in (1, 2, 3) * 10:
        triton_client.async_infer(
            "scaled",
            inputs,
            functools.partial(lambda power, result, error: replies.put((power, result)), power),
            parameters={"power": power},
        )
    for _ in range(30):
        power, result = replies.get(timeout=CALL_SECONDS)
        assert_close(result.as_numpy("y"), scaled(power=power))


def test_number_without_default_is_required(client: braid.Client) -> None:
    with pytest.raises(braid.InvalidArgument, match="'power' is missing"):
        client.infer("demanding", {"x": A})


def test_training_uses_default_numbers(client: braid.Client) -> None:
    module = structured_models.scaled()
    with training.new_trainer(
        client, "scaled", loss="mse", optimizer={"name": "SGD", "lr": 0.1}
    ) as trainer:
        loss = trainer.step({"x": A}, {"target": B}).loss
    wanted = torch.nn.functional.mse_loss(module(torch.from_numpy(A)), torch.from_numpy(B))
    assert loss == pytest.approx(wanted.item(), rel=1e-5)


def test_model_with_required_number_is_not_trainable(client: braid.Client) -> None:
    with pytest.raises(braid.FailedPrecondition, match="'power'"):
        client.create_trainer("demanding", loss="mse", optimizer={"name": "SGD", "lr": 0.1})


def test_pair_trains_with_default_numbers(server_in: Callable[[str], Server]) -> None:
    sgd = {"name": "SGD", "lr": 0.1}
    with (
        braid.connect(server_in("pair").address) as client,
        training.new_trainer(client, "scaled_by_default", loss="mse", optimizer=sgd) as trainer,
    ):
        loss = trainer.step({"x": A}, {"target": B}).loss
    wanted = torch.nn.functional.mse_loss(scaled(), torch.from_numpy(B))
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
