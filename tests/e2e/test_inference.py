"""Inference with tritonclient: outputs equal PyTorch's for every batch size."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
from e2e.support import models
from e2e.support.inference import assert_close, expected, infer, infer_input, outputs_of
from e2e.support.protocol import CALL_SECONDS
from e2e.support.server import Server
from tritonclient.utils import InferenceServerException

DEVICES = ["cpu*1", "cpu*2", "cpu*3"]


@pytest.fixture(scope="module", params=DEVICES)
def each_client(
    request: pytest.FixtureRequest, serve: Callable[..., Server], served_format: str
) -> Iterator[triton.InferenceServerClient]:
    """A client of a server on each of DEVICES."""
    with triton.InferenceServerClient(serve(request.param, served_format).address) as client:
        yield client


@pytest.fixture(scope="module")
def client(
    serve: Callable[..., Server], served_format: str
) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(serve("cpu*2", served_format).address) as client:
        yield client


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# max_batch_size is 64, so 1000 rows must be split and not rejected.
@pytest.mark.parametrize("rows", [1, 32, 64, 65, 1000])
def test_outputs_equal_pytorch(each_client: triton.InferenceServerClient, rows: int) -> None:
    x = random(rows, 784)
    result = infer(each_client, "mlp", {"x": x}, request_id=f"rows-{rows}")
    assert result.get_response().id == f"rows-{rows}"
    assert_close(result.as_numpy("logits"), expected(models.make("mlp"), x))


@pytest.mark.parametrize("rows", [1, 5, 200])
def test_convnet_runs_in_evaluation_mode(
    each_client: triton.InferenceServerClient, rows: int
) -> None:
    x = random(rows, 1, 28, 28)
    result = infer(each_client, "convnet", {"x": x})
    assert_close(result.as_numpy("output__0"), expected(models.make("convnet"), x))


def test_async_infer(client: triton.InferenceServerClient) -> None:
    x = random(32, 784)
    replies: queue.Queue = queue.Queue()
    client.async_infer(
        "mlp",
        [infer_input("x", x)],
        callback=lambda result, error: replies.put((result, error)),
        request_id="later",
    )
    result, error = replies.get(timeout=CALL_SECONDS)
    assert error is None
    assert result.get_response().id == "later"
    assert_close(result.as_numpy("logits"), expected(models.make("mlp"), x))


def test_concurrent_requests_get_own_rows(each_client: triton.InferenceServerClient) -> None:
    module = models.make("mlp")
    batches = [random(1 + i % 3, 784, seed=i) for i in range(200)]
    replies: queue.Queue = queue.Queue()
    for i, x in enumerate(batches):
        each_client.async_infer(
            "mlp",
            [infer_input("x", x)],
            callback=lambda result, error, i=i: replies.put((i, result, error)),
            request_id=str(i),
        )
    answered = set()
    for _ in batches:
        i, result, error = replies.get(timeout=CALL_SECONDS)
        assert error is None
        assert result.get_response().id == str(i)
        assert_close(result.as_numpy("logits"), expected(module, batches[i]))
        answered.add(i)
    assert len(answered) == len(batches)


def test_two_inputs_in_either_order(client: triton.InferenceServerClient) -> None:
    a, b = random(7, 4), random(7, 3, seed=2)
    wanted = expected(models.make("two_inputs"), a, b)
    for inputs in ({"a": a, "b": b}, {"b": b, "a": a}):
        assert_close(infer(client, "two_inputs", inputs).as_numpy("output__0"), wanted)


def test_tuple_output(each_client: triton.InferenceServerClient) -> None:
    x = random(100, 6)
    logits, probabilities = expected(models.make("two_outputs"), x)
    outputs = outputs_of(infer(each_client, "two_outputs", {"x": x}))
    assert list(outputs) == ["output__0", "output__1"]
    assert_close(outputs["output__0"], logits)
    assert_close(outputs["output__1"], probabilities)


def test_dict_output(each_client: triton.InferenceServerClient) -> None:
    x = random(100, 6)
    wanted = expected(models.make("named_outputs"), x)
    outputs = outputs_of(infer(each_client, "named_outputs", {"x": x}))
    assert set(outputs) == {"hidden", "total"}
    for name, values in outputs.items():
        assert_close(values, wanted[name])


def test_only_requested_outputs_are_returned_in_order(
    client: triton.InferenceServerClient,
) -> None:
    x = random(3, 6)
    for names in (["output__1"], ["output__1", "output__0"]):
        requested = [triton.InferRequestedOutput(name) for name in names]
        result = infer(client, "two_outputs", {"x": x}, outputs=requested)
        assert list(outputs_of(result)) == names


# One-dimensional input: six indices are six rows.
@pytest.mark.parametrize("rows", [1, 6, 300])
def test_embedding_with_one_index_per_row(
    each_client: triton.InferenceServerClient, rows: int
) -> None:
    words = np.random.default_rng(0).integers(0, 1000, rows)
    outputs = outputs_of(infer(each_client, "words", {"words": words}))
    assert_close(outputs["output__0"], expected(models.make("words"), words))


@pytest.mark.not_in("pair", model="sentences", reason="its sentences are of any length")
@pytest.mark.parametrize("shape", [(1, 2), (6, 4), (300, 9)])
def test_embedding_of_sentences_with_any_length(
    each_client: triton.InferenceServerClient, shape: tuple[int, int]
) -> None:
    words = np.random.default_rng(0).integers(0, 1000, shape)
    outputs = outputs_of(infer(each_client, "sentences", {"INPUT__0": words}))
    assert_close(outputs["OUTPUT__0"], expected(models.make("sentences"), words))


@pytest.mark.parametrize("devices", DEVICES)
def test_split_is_reported_on_request(
    serve: Callable[..., Server], served_format: str, devices: str
) -> None:
    with triton.InferenceServerClient(serve(devices, served_format).address) as client:
        x = random(1000, 784)
        parameters = infer(client, "mlp", {"x": x}).get_response().parameters
        assert "split" not in parameters
        reply = infer(client, "mlp", {"x": x}, parameters={"report_split": True}).get_response()
        with pytest.raises(InferenceServerException, match="report_split"):
            infer(client, "mlp", {"x": x}, parameters={"report_split": "yes"})
    chunks = [chunk.split("=") for chunk in reply.parameters["split"].string_param.split(",")]
    known = {f"cpu:{i}" for i in range(int(devices.removeprefix("cpu*")))}
    assert {device for device, _ in chunks} <= known
    rows = [int(count) for _, count in chunks]
    assert sum(rows) == 1000
    assert all(0 < count <= 64 for count in rows)
