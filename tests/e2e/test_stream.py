"""Streams of operations: order, errors, and the operations applied before an error."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import braid
import grpc
import numpy as np
import pytest
from e2e.support import durable, protocol, training
from e2e.support.durable import assert_same_bits
from e2e.support.polling import wait_until
from e2e.support.protocol import CALL_SECONDS, exchange, operation, violated_fields
from e2e.support.raw_trainer import RawTrainer
from e2e.support.server import Server

CODES = grpc.StatusCode
X = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 0])
# Duration on the slow model: longer than the rest of a test.
SLOW = np.random.default_rng(0).standard_normal((60, 256)).astype(np.float32)


@pytest.fixture
def address(serve: Callable[[str], Server]) -> str:
    return serve("cpu*2").address


def make_trainer(address: str) -> RawTrainer:
    return RawTrainer(
        address, "chain", {"name": "cross_entropy"}, {"sgd": {"lr": 0.1, "momentum": 0.9}}
    )


@pytest.fixture
def trainer(address: str) -> Iterator[RawTrainer]:
    trainer = make_trainer(address)
    yield trainer
    trainer.delete()


def step_of(trainer: RawTrainer, sequence: int, x: np.ndarray = X) -> Any:
    request = trainer.request("Step", {"x": x}, {"target": LABELS[: len(x)]})
    request.sequence = sequence
    return request


def step_at(trainer: RawTrainer, sequence: int, x: np.ndarray = X) -> Any:
    return operation("Step", step_of(trainer, sequence, x))


def test_operations_of_every_kind_are_answered_in_order(
    address: str, trainer: RawTrainer
) -> None:
    """The replies equal those of single calls."""
    batch = ({"x": X}, {"target": LABELS})
    kinds = [
        ("Step", batch, {"report_split": True}),
        ("ForwardBackward", batch, {}),
        ("OptimStep", (), {"hyper_parameters": {"lr": 0.5}}),
        ("Forward", ({"x": X},), {"keep_graph": True}),
        ("Backward", (), {}),
        ("OptimStep", (), {}),
        ("Forward", ({"x": X},), {"mode": 2}),
    ]
    twin = make_trainer(address)
    requests, wanted = [], []
    for number, (method, arguments, fields) in enumerate(kinds, 1):
        request = trainer.request(method, *arguments, **fields)
        request.sequence = number
        if method == "Backward":
            gradient = {"name": "output__0", "datatype": "FP32", "shape": [6, 5]}
            fields = {"output_gradients": [{**gradient, "data": bytes(4 * 30)}]}
            request = trainer.request(method, **fields)
            request.sequence = number
        requests.append(operation(method, request))
        wanted.append(twin.apply(method, *arguments, **fields))
    replies, error = exchange(address, requests)
    assert error is None
    for reply in replies + wanted:
        del reply.status.phases[:]
    assert replies == wanted
    assert trainer.state() == twin.state()
    twin.delete()


def test_failed_operation_ends_the_stream(address: str, trainer: RawTrainer) -> None:
    """Earlier operations are answered, later ones are not applied."""
    requests = [step_at(trainer, number) for number in range(1, 9)]
    requests[4] = step_at(trainer, 5, X[:, :9])
    replies, error = exchange(address, requests)
    assert [reply.status.applied_sequence for reply in replies] == [1, 2, 3, 4]
    assert error.code() == CODES.INVALID_ARGUMENT
    assert violated_fields(error) == ["inputs[0].shape"]
    assert trainer.info().applied_sequence == trainer.info().step == 4
    # The corrected operation continues there.
    replies, error = exchange(address, [step_at(trainer, number) for number in range(5, 9)])
    assert error is None
    assert [reply.status.step for reply in replies] == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("sequence", "code"),
    [
        (0, CODES.INVALID_ARGUMENT),
        (2, CODES.FAILED_PRECONDITION),
        (3, CODES.ABORTED),
        (5, CODES.FAILED_PRECONDITION),
    ],
)
def test_out_of_order_number_ends_the_stream(
    address: str, trainer: RawTrainer, sequence: int, code: grpc.StatusCode
) -> None:
    """No later operation is applied, even if its number would be the next."""
    requests = [step_at(trainer, number) for number in (1, 2, 3)]
    requests += [step_at(trainer, sequence, X + 1), *(step_at(trainer, n) for n in (4, 5, 6))]
    replies, error = exchange(address, requests)
    assert len(replies) == 3
    assert error.code() == code
    assert "expected 4" in error.details()
    # This call waits for its turn after all that was sent.
    reply = trainer.send("Step", step_of(trainer, 4))
    assert (reply.status.step, reply.status.replayed) == (4, False)


def test_last_operation_may_be_retried(address: str, trainer: RawTrainer) -> None:
    first, _ = exchange(address, [step_at(trainer, 1), step_at(trainer, 2)])
    again, error = exchange(address, [step_at(trainer, number) for number in (2, 2, 3)])
    assert error is None
    assert [reply.status.replayed for reply in again] == [True, True, False]
    assert again[0].loss == again[1].loss == first[1].loss
    assert trainer.info().step == 3


def test_stream_belongs_to_one_trainer(address: str, trainer: RawTrainer) -> None:
    other = make_trainer(address)
    replies, error = exchange(
        address, [step_at(trainer, 1), step_at(other, 1), step_at(trainer, 2)]
    )
    assert len(replies) == 1
    assert error.code() == CODES.INVALID_ARGUMENT
    assert violated_fields(error) == ["trainer"]
    assert other.info().applied_sequence == 0
    assert not trainer.send("Step", step_of(trainer, 2)).status.replayed
    other.delete()


def test_message_without_operation_is_rejected(address: str, trainer: RawTrainer) -> None:
    replies, error = exchange(address, [step_at(trainer, 1), protocol.StreamRequest()])
    assert len(replies) == 1
    assert error.code() == CODES.INVALID_ARGUMENT
    assert violated_fields(error) == ["operation"]


def test_missing_trainer_is_not_found(address: str, trainer: RawTrainer) -> None:
    trainer.name, name = "no-such-trainer", trainer.name
    replies, error = exchange(address, [step_at(trainer, 1)])
    trainer.name = name
    assert replies == []
    assert error.code() == CODES.NOT_FOUND


def test_deep_pipeline_is_applied_in_order(address: str, trainer: RawTrainer) -> None:
    """Far more operations than the server reads at a time. None that is in order is rejected."""
    count = 3000
    replies, error = exchange(
        address, (step_at(trainer, number, X[:1]) for number in range(1, count + 1))
    )
    assert error is None, error.details()
    assert [reply.status.applied_sequence for reply in replies] == list(range(1, count + 1))
    assert not any(reply.status.replayed for reply in replies)


def test_step_adds_to_accumulated_gradients(address: str) -> None:
    """ForwardBackward and Step equal two ForwardBackwards and OptimStep, every time."""
    one, other = make_trainer(address), make_trainer(address)
    batch = ({"x": X}, {"target": LABELS})
    for _ in range(40):
        one.apply("ForwardBackward", *batch)
        one.apply("Step", *batch)
        other.apply("ForwardBackward", *batch)
        other.apply("ForwardBackward", *batch)
        other.apply("OptimStep")
        assert one.state() == other.state()
    one.delete()
    other.delete()


def wait_until_busy(address: str, trainer: RawTrainer, request: Any) -> Any:
    """Sends a stream with a slow operation. Returns it once the server executes the operation."""
    requests = iter([operation("Step", request)])
    forever = threading.Event()

    def feed() -> Iterator[Any]:
        yield from requests
        forever.wait(CALL_SECONDS)

    before = samples(address)
    call = protocol.open_stream(address, feed())
    call.add_callback(forever.set)
    wait_until(lambda: samples(address) != before)
    return call


def samples(address: str) -> float:
    """Returns a device counter that grows while an operation runs."""
    with braid.connect(address) as client:
        return sum(device.busy_seconds.get("copy_in", 0.0) for device in client.devices())


def test_trainer_continues_after_a_cancelled_stream(address: str) -> None:
    """The operation in flight is applied fully or not at all. A retry returns its result."""
    trainer = RawTrainer(address, "slow", {"name": "mse"}, {"sgd": {"lr": 0.1}})
    request = trainer.request("Step", {"x": SLOW}, {"target": SLOW})
    call = wait_until_busy(address, trainer, request)
    call.cancel()
    reply = trainer.send("Step", request)  # Waits for its turn.
    assert reply.status.applied_sequence == reply.status.step == 1
    assert reply.status.replayed
    assert trainer.info().step == 1
    trainer.delete()


def test_expired_deadline_can_be_retried(address: str) -> None:
    """The client does not know the outcome. Retrying the same call returns it."""
    with braid.connect(address) as client, training.new_trainer(
        client, "slow", loss="mse", optimizer="SGD"
    ) as trainer:
        with pytest.raises(braid.DeadlineExceeded):
            trainer.step({"x": SLOW}, {"target": SLOW}, timeout=0.05)
        result = trainer.step({"x": SLOW}, {"target": SLOW})
        assert (result.step, result.sequence) == (1, 1)
        assert math.isfinite(result.loss)
        assert trainer.info().step == 1


@pytest.mark.parametrize("left", ["step", "stream"])
def test_sync_returns_a_stable_number_during_operations(address: str, left: str) -> None:
    """With another operation: the number that `sync` returns stays valid."""
    slow = {"x": SLOW}, {"target": SLOW}
    with braid.connect(address) as client, training.new_trainer(
        client, "slow", loss="mse", optimizer="SGD"
    ) as trainer:
        if left == "step":
            with pytest.raises(braid.DeadlineExceeded):
                trainer.step(*slow, timeout=0.05)
        else:
            with pytest.raises(KeyError), trainer.stream(depth=6) as stream:
                for _ in range(6):
                    stream.step(*slow)
                time.sleep(0.05)
                raise KeyError
        stands = trainer.sync().applied_sequence
        assert trainer.step({"x": SLOW[:1]}, {"target": SLOW[:1]}).sequence == stands + 1
        assert trainer.info().applied_sequence == stands + 1


@pytest.mark.parametrize("streaming", ["first", "second"])
def test_conflict_of_two_clients_on_one_trainer_is_reported(address: str, streaming: str) -> None:
    """The second client to use a number gets an error and can resynchronize."""
    with braid.connect(address) as client, training.new_trainer(
        client, "chain", loss="cross_entropy", optimizer="SGD"
    ) as first:
        second = client.trainer(first.name)
        batch = {"x": X}, {"target": LABELS}
        other = {"x": X + 1}, {"target": LABELS}
        if streaming == "first":
            with pytest.raises(braid.BraidError) as caught, first.stream(depth=4) as stream:
                stream.step(*batch).result()
                second.sync()
                assert second.step(*other).sequence == 2
                stream.step(*batch).result()
            told = first
        else:
            first.step(*batch)
            with pytest.raises(braid.BraidError) as caught, second.stream(depth=4) as stream:
                stream.step(*other).result()
            told = second
        assert isinstance(caught.value, (braid.Aborted, braid.FailedPrecondition))
        assert "another client" in caught.value.message
        applied = told.sync().applied_sequence
        assert told.step(*batch).sequence == applied + 1


def test_pipeline_failure_reaches_its_future(address: str) -> None:
    with braid.connect(address) as client, training.new_trainer(
        client, "chain", loss="cross_entropy", optimizer="SGD"
    ) as trainer:
        futures = []
        with pytest.raises(braid.InvalidArgument) as caught, trainer.stream(depth=8) as stream:
            for number in range(8):
                x = X[:, :9] if number == 3 else X
                futures.append(stream.step({"x": x}, {"target": LABELS}))
        assert caught.value.field == "inputs[0].shape"
        assert [future.result().step for future in futures[:3]] == [1, 2, 3]
        assert futures[3].exception() is caught.value
        assert all(isinstance(future.exception(), braid.Cancelled) for future in futures[4:])
        assert trainer.info().applied_sequence == 3
        assert trainer.step({"x": X}, {"target": LABELS}).step == 4


def learn(trainer: braid.Trainer, count: int, at: Callable[[int], None] | None = None) -> list:
    """Streams `count` steps of NormAndDropout. Calls `at` before each."""
    futures = []
    with trainer.stream(depth=6) as stream:
        for number in range(count):
            if at is not None:
                at(number)
            futures.append(stream.step(*durable.batch(number)))
    return [future.result() for future in futures]


def assert_same_results(actual: list, wanted: list) -> None:
    """Compares all replies except lost ones, which report it."""
    assert len(actual) == len(wanted)
    for mine, other in zip(actual, wanted):
        assert mine.sequence == other.sequence
        if not mine.reply_lost:
            assert (mine.step, mine.loss) == (other.step, other.loss)


def test_stream_survives_repeated_connection_loss(tmp_path: Any) -> None:
    """Cuts at arbitrary bytes in both directions. No operation is lost or applied twice."""
    proxy_class = protocol.load_cutting_proxy()
    generator = np.random.default_rng(5)
    cuts = [int(cut) for cut in generator.integers(500, 30000, 12)]
    options = {"loss": "cross_entropy", "optimizer": "AdamW"}
    with durable.serving(tmp_path) as server, durable.connect(server) as direct:
        with proxy_class(server.address, cuts) as proxy:
            server_address, client = server.address, braid.connect(proxy.address, timeout=60)
            client._channel.retry = direct._channel.retry
            assert proxy.address != server_address
            with client:
                broken = client.create_trainer("noisy", name="broken", **options)
                actual = learn(broken, 200)
                state = broken.state_dict()
            assert proxy.connections > len(cuts)
        whole = direct.create_trainer("noisy", name="whole", **options)
        assert_same_results(actual, learn(whole, 200))
        assert_same_bits(state, whole.state_dict())
        assert direct.trainer("broken").info().applied_sequence == 200


def test_stream_survives_a_drain_and_restart(tmp_path: Any) -> None:
    """The server exits with code 0, and the client continues after the restart."""
    options = {"loss": "cross_entropy", "optimizer": "AdamW"}
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        trainer = client.create_trainer("noisy", name="drained", checkpoint_every=50, **options)
        restarts: list[threading.Thread] = []

        def drain(number: int) -> None:
            if number in (70, 130):
                for restart in restarts:
                    restart.join()
                server.terminate()
                restarts.append(threading.Thread(target=restart_server))
                restarts[-1].start()

        def restart_server() -> None:
            assert server.wait() == 0, server.log
            server.start()

        actual = learn(trainer, 200, drain)
        for restart in restarts:
            restart.join()
        # SIGTERM wrote a checkpoint of all applied operations, so none was repeated.
        assert "applied again" not in server.log
        twin = client.create_trainer("noisy", name="twin", **options)
        assert_same_results(actual, learn(twin, 200))
        assert_same_bits(trainer.state_dict(), twin.state_dict())
