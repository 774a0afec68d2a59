"""ModelStreamInfer, through tritonclient and raw: order, errors, batches in several messages, ends."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from e2e.support import metrics, models
from e2e.support.inference import assert_close, expected, infer_input
from e2e.support.polling import settled, wait_until
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import Server

InferRequest = message("inference.ModelInferRequest")


@pytest.fixture(scope="module")
def server(serve: Callable[[str], Server]) -> Server:
    return serve("cpu*2")


@pytest.fixture(scope="module")
def stub(server: Server) -> Iterator[Stub]:
    with channel(server.address) as on:
        yield Stub(on, "inference.GRPCInferenceService")


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def random(rows: int, columns: int = 784) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)


def request(
    model: str, x: np.ndarray, request_id: str = "", name: str = "x", **parameters: bool
) -> Any:
    made = InferRequest(model_name=model, id=request_id)
    made.inputs.add(name=name, datatype="FP32", shape=x.shape)
    made.raw_input_contents.append(x.tobytes())
    for key, value in parameters.items():
        made.parameters[key].bool_param = value
    return made


def values(reply: Any, *shape: int) -> np.ndarray:
    return np.frombuffer(reply.infer_response.raw_output_contents[0], np.float32).reshape(*shape)


def in_flight(server: Server) -> float:
    """Returns the number of queued rows."""
    scraped = metrics.scrape(server.metrics_url)
    return sum(
        scraped.value("braid_queue_rows", **labels)
        for labels in scraped.labels_of("braid_queue_rows")
    )


def start(
    client: triton.InferenceServerClient, **options: Any
) -> queue.Queue[tuple[triton.InferResult | None, Exception | None]]:
    replies: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: replies.put((result, error)), **options)
    return replies


def test_replies_are_in_request_order(
    client: triton.InferenceServerClient,
) -> None:
    # A large request does not overtake, nor is it overtaken: 1, 300, 2, 1, 300, …
    batches = [random(rows) for rows in [1, 300, 2] * 40]
    replies = start(client)
    for i, x in enumerate(batches):
        client.async_stream_infer("mlp", [infer_input("x", x)], request_id=str(i))
    module = models.make("mlp")
    for i, x in enumerate(batches):
        result, error = replies.get(timeout=CALL_SECONDS)
        assert error is None
        response = result.get_response()
        assert response.id == str(i)
        assert response.parameters["triton_final_response"].bool_param
        assert_close(result.as_numpy("logits"), expected(module, x))
    client.stop_stream()


def test_error_is_in_band_and_the_stream_continues(client: triton.InferenceServerClient) -> None:
    replies = start(client)
    for model, x in [("mlp", random(2)), ("mlp", random(2, 7)), ("nosuch", random(1))]:
        client.async_stream_infer(model, [infer_input("x", x)])
    client.async_stream_infer("mlp", [infer_input("x", random(3))], request_id="last")
    assert replies.get(timeout=CALL_SECONDS)[1] is None
    assert "[2, 7]" in str(replies.get(timeout=CALL_SECONDS)[1])
    assert "nosuch" in str(replies.get(timeout=CALL_SECONDS)[1])
    result, error = replies.get(timeout=CALL_SECONDS)
    assert error is None and result.get_response().id == "last"
    client.stop_stream()


def test_error_has_the_requests_id(stub: Stub) -> None:
    (reply,) = stub.ModelStreamInfer(iter([request("nosuch", random(1), "mine")]))
    assert "nosuch" in reply.error_message
    assert reply.infer_response.id == "mine"
    assert reply.infer_response.parameters["triton_final_response"].bool_param
    assert not reply.infer_response.outputs


def test_errors_as_status_end_the_stream(client: triton.InferenceServerClient) -> None:
    replies = start(client, headers={"triton_grpc_error": "true"})
    client.async_stream_infer("mlp", [infer_input("x", random(2))])
    client.async_stream_infer("nosuch", [infer_input("x", random(1))])
    result, error = replies.get(timeout=CALL_SECONDS)
    assert error is None and result is not None
    result, error = replies.get(timeout=CALL_SECONDS)
    assert result is None
    assert error.status() == "StatusCode.NOT_FOUND" and "nosuch" in error.message()
    client.stop_stream()


def test_every_input_validation_error_is_in_band(stub: Stub) -> None:
    bad = request("mlp", random(2))
    bad.inputs[0].datatype = "BYTES"
    twice = request("mlp", random(2))
    twice.outputs.add(name="logits")
    twice.outputs.add(name="logits")
    empty = InferRequest(model_name="mlp")
    replies = list(stub.ModelStreamInfer(iter([bad, twice, empty, request("mlp", random(2))])))
    assert ["BYTES" in r.error_message for r in replies] == [True, False, False, False]
    assert "twice" in replies[1].error_message
    assert "missing" in replies[2].error_message
    assert replies[3].error_message == "" and values(replies[3], 2, 10).shape == (2, 10)


def test_each_request_is_counted_with_its_status(server: Server, stub: Stub) -> None:
    """Each is counted like a single call. The stream itself is not counted again."""
    codes = {"OK": "mlp", "INVALID_ARGUMENT": "mlp", "NOT_FOUND": ""}

    def counts() -> dict[str, float]:
        scraped = metrics.scrape(server.metrics_url)
        method = {"method": "ModelStreamInfer"}
        counted = {
            code: scraped.value("braid_requests_total", **method, model=model, code=code)
            for code, model in codes.items()
        }
        timed = scraped.value("braid_request_duration_seconds_count", **method, model="mlp")
        return {**counted, "timed": timed}

    before = counts()
    good, bad = request("mlp", random(2)), request("mlp", random(2, 7))
    sent = [good, bad, good, request("nosuch", random(1)), bad, good]
    assert len(list(stub.ModelStreamInfer(iter(sent)))) == len(sent)
    counted = {name: value - before[name] for name, value in counts().items()}
    assert counted == {"OK": 3, "INVALID_ARGUMENT": 2, "NOT_FOUND": 1, "timed": 5}


def test_requests_of_cancelled_stream_are_counted_as_cancelled(server: Server, stub: Stub) -> None:
    def cancelled() -> float:
        return metrics.scrape(server.metrics_url).value(
            "braid_requests_total", method="ModelStreamInfer", model="slow", code="CANCELLED"
        )

    before = cancelled()
    done = threading.Event()

    def requests() -> Iterator[Any]:
        yield request("slow", random(1, 256))
        for _ in range(3):
            yield request("slow", random(400, 256))
        done.wait(CALL_SECONDS)

    call = stub.ModelStreamInfer(requests())
    next(call)
    # More rows than two of the three requests have, so all have arrived.
    wait_until(lambda: in_flight(server) > 800)
    call.cancel()
    done.set()
    wait_until(lambda: cancelled() - before == 3)


def test_batch_in_several_messages(stub: Stub) -> None:
    x = random(1000)
    parts = np.split(x, [300, 700])
    requests = [
        request("mlp", part, "big", braid_more=i < len(parts) - 1) for i, part in enumerate(parts)
    ]
    replies = list(stub.ModelStreamInfer(iter(requests)))
    assert [reply.infer_response.parameters["braid_more"].bool_param for reply in replies] == [
        True,
        True,
        False,
    ]
    rows = [values(reply, len(part), 10) for reply, part in zip(replies, parts, strict=True)]
    assert_close(np.concatenate(rows), expected(models.make("mlp"), x))


def test_batch_fails_from_its_first_failed_message(stub: Stub) -> None:
    parts = [random(2), random(2, 3), random(2)]
    requests = [request("mlp", part, str(i), braid_more=i < 2) for i, part in enumerate(parts)]
    after = request("mlp", random(1), "after")
    replies = list(stub.ModelStreamInfer(iter([*requests, after])))
    assert [reply.infer_response.id for reply in replies] == ["0", "1", "2", "after"]
    assert [bool(reply.error_message) for reply in replies] == [False, True, True, False]
    assert replies[1].error_message == replies[2].error_message


def test_batch_must_use_one_model(stub: Stub) -> None:
    first = request("mlp", random(2), braid_more=True)
    other = request("smooth", random(2))
    replies = list(stub.ModelStreamInfer(iter([first, other])))
    assert "model_name" in replies[1].error_message


def test_half_close_waits_for_requests_in_flight(stub: Stub) -> None:
    requests = [request("slow", random(4, 256), str(i)) for i in range(20)]
    replies = list(stub.ModelStreamInfer(iter(requests)))
    assert [reply.infer_response.id for reply in replies] == [str(i) for i in range(20)]


def test_stream_without_requests_ends(stub: Stub) -> None:
    assert list(stub.ModelStreamInfer(iter([]))) == []


def test_cancellation_removes_queued_requests(server: Server, stub: Stub) -> None:
    """1,000 rows of 5 ms would run for seconds without cancellation."""
    sent = threading.Event()

    def requests() -> Iterator[Any]:
        for i in itertools.count():
            if i == 20:
                sent.set()
                break
            yield request("slow", random(100, 256), str(i))
        threading.Event().wait(CALL_SECONDS)

    call = stub.ModelStreamInfer(requests())
    next(call)
    assert sent.wait(CALL_SECONDS)
    call.cancel()
    wait_until(lambda: in_flight(server) == 0, seconds=5)
    (reply,) = stub.ModelStreamInfer(iter([request("slow", random(1, 256))]))
    assert reply.error_message == ""


def test_slow_reader_buffers_a_limited_number_of_replies(
    server: Server, stub: Stub
) -> None:
    """Replies of 8 MB must not accumulate in the server if they are not read."""
    x = random(1000, 2000)
    sent = 0

    def requests() -> Iterator[Any]:
        nonlocal sent
        for _ in range(200):
            sent += 1
            yield request("identity_fp32", x)

    before = server.resident_bytes()
    call = stub.ModelStreamInfer(requests())
    first = next(call)
    assert values(first, 1000, 2000).shape == (1000, 2000)
    stopped = settled(lambda: sent)
    assert stopped < 100
    assert server.resident_bytes() - before < 700_000_000
    rest = sum(1 for _ in call)
    assert rest == 199
