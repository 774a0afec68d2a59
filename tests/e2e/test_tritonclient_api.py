"""tritonclient's gRPC API, sync and asyncio: all calls other than plain inference, and inference
options besides tensors."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from e2e.support import metrics, models
from e2e.support.inference import assert_close, expected, infer, infer_input
from e2e.support.polling import wait_until
from e2e.support.protocol import CALL_SECONDS
from e2e.support.server import Server
from tritonclient.utils import InferenceServerException

X = np.random.default_rng(3).standard_normal((3, 784), dtype=np.float32)


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("cpu*2", ("mlp", "slow", "two_outputs", "identity_int64", "identity_fp16"))


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.address) as client:
        yield client


def status_of(error: pytest.ExceptionInfo) -> str:
    return error.value.status().removeprefix("StatusCode.")


def logits() -> np.ndarray:
    return expected(models.make("mlp"), X)


def slow(rows: int) -> list[triton.InferInput]:
    return [infer_input("x", np.zeros((rows, 256), np.float32))]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_requests_may_be_compressed(client: triton.InferenceServerClient, algorithm: str) -> None:
    result = infer(client, "mlp", {"x": X}, compression_algorithm=algorithm)
    assert_close(result.as_numpy("logits"), logits())


def test_client_headers_and_parameters_are_accepted(
    client: triton.InferenceServerClient,
) -> None:
    result = infer(
        client,
        "mlp",
        {"x": X},
        headers={"x-request-source": "test"},
        parameters={"of_my_own": "value", "number": 3, "truth": True},
        priority=1,
        timeout=30_000_000,
        request_id="seven",
    )
    assert result.get_response().id == "seven"
    assert_close(result.as_numpy("logits"), logits())


def test_sequences_are_rejected(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="sequence") as caught:
        infer(client, "mlp", {"x": X}, sequence_id=5, sequence_start=True)
    assert status_of(caught) == "UNIMPLEMENTED"


@pytest.mark.parametrize("count", [1, 4, 100])
def test_classification(client: triton.InferenceServerClient, count: int) -> None:
    outputs = [triton.InferRequestedOutput("logits", class_count=count)]
    result = infer(client, "mlp", {"x": X}, outputs=outputs)
    classes = result.as_numpy("logits")
    values = logits().numpy()
    assert classes.shape == (3, min(count, 10))
    for row, texts in zip(values, classes, strict=True):
        order = np.argsort(-row)[: len(texts)]
        split = [text.decode().split(":") for text in texts]
        assert [int(index) for _, index in split] == order.tolist()
        assert np.allclose([float(value) for value, _ in split], row[order], atol=1e-5)


def test_classification_of_one_output_and_the_tensor_of_another(
    client: triton.InferenceServerClient,
) -> None:
    x = X[:, :6].copy()
    outputs = [
        triton.InferRequestedOutput("output__1", class_count=2),
        triton.InferRequestedOutput("output__0"),
    ]
    result = infer(client, "two_outputs", {"x": x}, outputs=outputs)
    scores, _ = expected(models.make("two_outputs"), x)
    assert [tensor.name for tensor in result.get_response().outputs] == ["output__1", "output__0"]
    assert result.as_numpy("output__1").shape == (3, 2)
    assert_close(result.as_numpy("output__0"), scores)


def test_unsuitable_classification_is_rejected(client: triton.InferenceServerClient) -> None:
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    with pytest.raises(InferenceServerException, match="FP16"):
        infer(client, "identity_fp16", {"x": np.zeros((1, 2), np.float16)}, outputs=outputs)


def test_strings_are_rejected(client: triton.InferenceServerClient) -> None:
    tensor = triton.InferInput("x", [1, 784], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"text"] * 784], dtype=np.object_))
    with pytest.raises(InferenceServerException, match="no string tensors"):
        client.infer("mlp", [tensor])


def test_client_timeout_frees_the_slot(
    server: Server, client: triton.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("slow", slow(1000), client_timeout=0.2)
    assert status_of(caught) == "DEADLINE_EXCEEDED"
    wait_until(lambda: queued_rows(server, "slow") == 0, seconds=2)


def queued_rows(server: Server, model: str) -> float:
    return metrics.scrape(server.metrics_url).value("braid_queue_rows", model=model)


def test_cancelled_async_infer_frees_its_slot(
    server: Server, client: triton.InferenceServerClient
) -> None:
    replies: queue.Queue = queue.Queue()
    call = client.async_infer(
        "slow", slow(2000), callback=lambda result, error: replies.put((result, error))
    )
    wait_until(lambda: queued_rows(server, "slow") > 0)
    call.cancel()
    result, error = replies.get(timeout=CALL_SECONDS)
    assert result is None and error.status() == "StatusCode.CANCELLED"
    # 2,000 rows of 5 ms would take two workers 5 s.
    wait_until(lambda: queued_rows(server, "slow") == 0, seconds=2)
    # The call ends after its running chunk.
    wait_until(
        lambda: metrics.scrape(server.metrics_url).value(
            "braid_requests_total", method="ModelInfer", model="slow", code="CANCELLED"
        )
        >= 1
    )


def test_killed_client_frees_its_slot(server: Server) -> None:
    with triton.InferenceServerClient(server.address) as dying:
        dying.async_infer("slow", slow(2000), callback=lambda result, error: None)
        wait_until(lambda: queued_rows(server, "slow") > 0)
    wait_until(lambda: queued_rows(server, "slow") == 0, seconds=2)


def test_inference_statistics_of_models_and_versions(
    client: triton.InferenceServerClient,
) -> None:
    (mlp,) = client.get_inference_statistics("mlp", "1").model_stats
    assert (mlp.name, mlp.version) == ("mlp", "1")
    everything = client.get_inference_statistics(as_json=True)["model_stats"]
    assert {"mlp", "two_outputs"} <= {each["name"] for each in everything}
    for name, version in [("nosuch", ""), ("mlp", "9")]:
        with pytest.raises(InferenceServerException) as caught:
            client.get_inference_statistics(name, version)
        assert status_of(caught) == "NOT_FOUND"


def test_inference_statistics(start_server: Callable[..., Server]) -> None:
    server = start_server("cpu*1", ("mlp", "two_outputs"))
    with triton.InferenceServerClient(server.address) as client:
        for _ in range(4):
            infer(client, "mlp", {"x": X})
        (mlp,) = client.get_inference_statistics("mlp").model_stats
        assert (mlp.name, mlp.version) == ("mlp", "1")
        assert mlp.inference_count == 12
        assert mlp.execution_count == 4
        assert mlp.last_inference > 1_600_000_000_000
        stats = mlp.inference_stats
        for each in (stats.success, stats.queue, stats.compute_infer):
            assert each.count == 4
        assert stats.fail.count == 0
        assert 0 < stats.compute_infer.ns < stats.success.ns
        assert [(b.batch_size, b.compute_infer.count) for b in mlp.batch_stats] == [(3, 4)]
        everything = client.get_inference_statistics().model_stats
        assert [each.name for each in everything] == ["mlp", "two_outputs"]
        assert everything[1].inference_count == 0
        assert len(client.get_inference_statistics("mlp", "1").model_stats) == 1
        for name, version in [("nosuch", ""), ("mlp", "9")]:
            with pytest.raises(InferenceServerException) as caught:
                client.get_inference_statistics(name, version)
            assert status_of(caught) == "NOT_FOUND"


def test_log_settings(client: triton.InferenceServerClient) -> None:
    before = client.get_log_settings().settings
    assert before["log_info"].bool_param and before["log_format"].string_param == "ISO8601"
    changed = client.update_log_settings({"log_verbose_level": 1}).settings
    assert changed["log_verbose_level"].uint32_param == 1
    with pytest.raises(InferenceServerException, match="log_file") as caught:
        client.update_log_settings({"log_file": "/tmp/log"})
    assert status_of(caught) == "UNIMPLEMENTED"
    with pytest.raises(InferenceServerException, match="nosuch"):
        client.update_log_settings({"nosuch": True, "log_info": False})
    restored = client.update_log_settings({"log_verbose_level": 0}).settings
    assert restored["log_info"].bool_param and restored["log_verbose_level"].uint32_param == 0


def test_trace_settings(client: triton.InferenceServerClient) -> None:
    assert list(client.get_trace_settings().settings["trace_level"].value) == ["OFF"]
    assert list(client.get_trace_settings("mlp").settings["trace_level"].value) == ["OFF"]
    with pytest.raises(InferenceServerException, match="trace_level"):
        client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InferenceServerException, match="nosuch"):
        client.get_trace_settings("nosuch")


def test_cuda_shared_memory_reports_the_reason(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="allow_client_shared_memory") as caught:
        client.register_cuda_shared_memory("r", b"AAAA", 0, 100)
    assert status_of(caught) == "UNIMPLEMENTED"


def test_asyncio_client(server: Server) -> None:
    async def use() -> None:
        async with triton_aio.InferenceServerClient(server.address) as client:
            assert await client.is_server_live() and await client.is_server_ready()
            assert await client.is_model_ready("mlp")
            assert (await client.get_server_metadata()).name == "braid"
            assert (await client.get_model_metadata("mlp")).name == "mlp"
            assert (await client.get_model_config("mlp")).config.max_batch_size == 64
            assert (await client.get_model_repository_index()).models
            assert (await client.get_inference_statistics("mlp")).model_stats
            assert (await client.get_log_settings()).settings
            assert (await client.get_trace_settings()).settings
            results = await asyncio.gather(
                *(client.infer("mlp", [infer_input("x", X)]) for _ in range(20))
            )
            for result in results:
                assert_close(result.as_numpy("logits"), logits())
            with pytest.raises(InferenceServerException, match="nosuch"):
                await client.infer("nosuch", [infer_input("x", X)])

    asyncio.run(asyncio.wait_for(use(), CALL_SECONDS))


def test_asyncio_stream(server: Server) -> None:
    async def requests():
        for i in range(10):
            yield {
                "model_name": "mlp" if i != 4 else "nosuch",
                "inputs": [infer_input("x", X)],
                "request_id": str(i),
            }

    async def use() -> None:
        async with triton_aio.InferenceServerClient(server.address) as client:
            seen = 0
            async for result, error in client.stream_infer(requests()):
                assert (error is not None) == (seen == 4)
                if error is None:
                    assert result.get_response().id == str(seen)
                    assert_close(result.as_numpy("logits"), logits())
                seen += 1
            assert seen == 10

    asyncio.run(asyncio.wait_for(use(), CALL_SECONDS))
