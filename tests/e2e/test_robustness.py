"""Failed requests leak no memory and do not affect other requests."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import numpy as np
import pytest
from e2e.support import models
from e2e.support.inference import assert_close, expected
from e2e.support.metrics import scrape
from e2e.support.protocol import CALL_SECONDS, Stub, channel, message
from e2e.support.server import Server
from e2e.test_errors_inference import ROWS, assert_outputs, valid_request

InferRequest = message("inference.ModelInferRequest")


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Server]) -> Server:
    return start_server("cpu*2")


@pytest.fixture(scope="module")
def stub(server: Server) -> Stub:
    return Stub(channel(server.address), "inference.GRPCInferenceService")


def test_failed_requests_do_not_leak_memory(server: Server, stub: Stub) -> None:
    def reject_all(times: int) -> None:
        for _ in range(times):
            for row in ROWS:
                request = valid_request()
                row.change(request)
                with pytest.raises(grpc.RpcError):
                    stub.ModelInfer(request)

    # The first failures allocate caches: backtrace symbols and thread caches.
    reject_all(times=10)
    before = server.resident_bytes()
    reject_all(times=2000 // len(ROWS) + 1)
    assert server.resident_bytes() - before < 8 << 20
    assert_outputs(stub)


def test_failed_request_does_not_fail_merged_requests(
    start_server: Callable[..., Server], served_format: str
) -> None:
    """64 requests, merged into fewer batches. One of them has an invalid index."""
    server = start_server("cpu*2", names=("waiting_words",), format=served_format)
    stub = Stub(channel(server.address), "inference.GRPCInferenceService")
    module = models.make("waiting_words")
    bad = 40
    batches = [np.random.default_rng(i).integers(0, 1000, 3) for i in range(64)]
    batches[bad][1] = 1000
    futures = []
    for words_of_one in batches:
        request = InferRequest(model_name="waiting_words")
        request.inputs.add(name="words", datatype="INT64", shape=[3])
        request.raw_input_contents.append(words_of_one.tobytes())
        futures.append(stub.ModelInfer.future(request))
    error = futures[bad].exception(timeout=CALL_SECONDS)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "model 'waiting_words' raised an error" in error.details()
    for i, future in enumerate(futures):
        if i != bad:
            data = future.result(timeout=CALL_SECONDS).raw_output_contents[0]
            values = np.frombuffer(data, np.float32).reshape(3, 5)
            assert_close(values, expected(module, batches[i]))
    # The requests were merged; unmerged, each would be a batch of 3.
    assert scrape(server.metrics_url).value(
        "braid_batch_size_rows_count", model="waiting_words"
    ) < len(batches)
