"""An exported pair that cannot be loaded reports the reason and does not affect other models."""

from __future__ import annotations

from collections.abc import Iterator

import braid
import numpy as np
import pytest
from e2e.support import broken_pairs, training
from e2e.support.broken_pair_cases import BROKEN, PROGRAM, manifest
from e2e.support.broken_pairs import GONE
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server

X = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
TARGET = np.arange(6) % 5
# Name → inputs that "good" does not take, the invalid field, the value and what is expected.
BAD_INPUTS = {
    "dtype": ({"x": X.astype(np.float64)}, "inputs[0].datatype", ("FP64 does not match input", "expected FP32")),
    "integers": ({"x": X.astype(np.int64)}, "inputs[0].datatype", ("INT64 does not match input", "expected FP32")),
    "rank": ({"x": X[None]}, "inputs[0].shape", ("[1, 6, 10]", "[-1, 10]")),
    "one_row": ({"x": X[0]}, "inputs[0].shape", ("[10]", "[-1, 10]")),
    "features": ({"x": X[:, :9].copy()}, "inputs[0].shape", ("[6, 9]", "[-1, 10]")),
    "name": ({"z": X}, "inputs[0].name", ("'z'", "'x'")),
}
# Valid for inference.
NO_BACKWARD = manifest("no_backward", f"{PROGRAM}.backward", GONE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("broken_pairs")
    repository = directory / "models"
    broken_pairs.export_good(repository / "good")
    broken_pairs.write(repository, repository / "good", [*BROKEN.values(), NO_BACKWARD])
    flags = ("--cpu_threads=1",)
    with Server(repository, "cpu*2", directory / "run", flags, data=False) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[braid.Client]:
    with braid.connect(server.address) as client:
        yield client


def status_of(client: braid.Client, name: str) -> braid.ModelStatus:
    (status,) = [status for status in client.models() if status.name == name]
    return status


def test_valid_pair_is_served_and_trained(client: braid.Client) -> None:
    assert client.is_ready()
    outputs = client.infer("good", {"x": X})
    assert_close(outputs["y"], expected(broken_pairs.make_good(), X))
    with training.new_trainer(
        client, "good", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
    ) as trainer:
        losses = [trainer.step({"x": X}, {"target": TARGET}).loss for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", BROKEN)
def test_index_and_log_report_the_reason(client: braid.Client, server: Server, name: str) -> None:
    status = status_of(client, name)
    assert status.state == "UNAVAILABLE"
    for word in BROKEN[name].words:
        assert word in status.reason
    assert any(name in line and status.reason in line for line in server.log.splitlines())


def test_index_lists_exactly_the_model_folders(client: braid.Client) -> None:
    assert [status.name for status in client.models()] == sorted([*BROKEN, "good", "no_backward"])


@pytest.mark.parametrize("name", ["truncated", "weight_missing", "slot_less"])
def test_requests_fail_with_the_reason(client: braid.Client, name: str) -> None:
    reason = status_of(client, name).reason
    with pytest.raises(braid.NotFound) as caught:
        client.infer(name, {"x": X})
    assert reason in caught.value.message
    with pytest.raises(braid.NotFound) as caught:
        client.create_trainer(name, loss="mse", optimizer={"name": "SGD", "lr": 0.1})
    assert reason in caught.value.message


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_input_of_wrong_type_or_shape_is_rejected(client: braid.Client, case: str) -> None:
    inputs, field, words = BAD_INPUTS[case]
    with training.new_trainer(
        client, "good", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
    ) as trainer:
        before = trainer.state_dict()
        for send in (
            lambda: client.infer("good", inputs),
            lambda: trainer.step(inputs, {"target": TARGET}),
        ):
            with pytest.raises(braid.InvalidArgument) as caught:
                send()
            assert caught.value.field == field
            for word in words:
                assert word in caught.value.message
        training.assert_unchanged(before, trainer.state_dict())


def test_chunk_with_too_few_rows_for_batch_norm_is_rejected(client: braid.Client) -> None:
    """Two replicas share three rows. One row has no variance."""
    with training.new_trainer(
        client, "good", loss="cross_entropy", optimizer={"name": "SGD", "lr": 0.1}
    ) as trainer:
        before = trainer.state_dict()
        with pytest.raises(braid.InvalidArgument, match=r"at least 2 rows\), got 1"):
            trainer.step({"x": X[:3]}, {"target": TARGET[:3]})
        training.assert_unchanged(before, trainer.state_dict())


def test_pair_without_backward_graph_is_served_but_not_trained(client: braid.Client) -> None:
    assert client.infer("no_backward", {"x": X})["y"].shape == (6, 5)
    with pytest.raises(braid.FailedPrecondition, match="has no backward graph"):
        client.create_trainer("no_backward", loss="mse", optimizer={"name": "SGD", "lr": 0.1})
