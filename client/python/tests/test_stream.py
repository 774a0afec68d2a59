"""Operations of a stream are applied in order and once, even if connections break."""

import math
import random
import threading

import grpc
import pytest

import braid
from braid._channel import RetryPolicy
from braid._replay import Operation
from cutting_proxy import CuttingProxy
from numbered import batch, batches

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
OPERATIONS = 9


@pytest.fixture(autouse=True)
def fast(client):
    client._channel.retry = RetryPolicy(initial_backoff=0.01, max_backoff=0.02)


@pytest.fixture
def create(client):
    def create(**options):
        return client.create_trainer("fashion", loss="mse", optimizer="SGD", **options)

    return create


def run(trainer, operations=OPERATIONS, depth=4, **options):
    """Runs steps over a stream. Returns their results."""
    with trainer.stream(depth, **options) as stream:
        futures = [stream.step(*batch(number)) for number in range(operations)]
    return [future.result(timeout=0) for future in futures]


def test_results_are_in_order(server, create):
    results = run(create())
    assert [result.sequence for result in results] == list(range(1, OPERATIONS + 1))
    assert [result.step for result in results] == list(range(1, OPERATIONS + 1))
    assert not any(result.reply_lost or result.replayed for result in results)
    assert batches(server) == list(range(OPERATIONS))
    assert server.streams == 1


def test_all_operations_are_supported(server, create):
    with create().stream() as stream:
        first = stream.forward_backward(*batch(0), report_split=True)
        updated = stream.optim_step(lr=0.5, group_lr=[0.25], metric=2)
        stepped = stream.step(*batch(1), momentum=0.5)
        version = stream.publish()
    assert first.result().chunks[0].device == "cpu:0"
    assert (updated.result().step, updated.result().lr) == (1, 0.5)
    assert (stepped.result().sequence, stepped.result().loss) == (3, 2.0)
    assert version.result() == 2
    (request,) = server.received("OptimStep")
    assert (list(request.hyper_parameters.group_lr), request.hyper_parameters.metric) == ([0.25], 2)


def test_handle_continues_after_the_stream(server, create):
    trainer = create()
    trainer.step(*batch(0))
    with trainer.stream() as stream:
        assert stream.step(*batch(1)).result().sequence == 2
        with pytest.raises(RuntimeError, match="a stream is open"):
            trainer.step(*batch(9))
        with pytest.raises(RuntimeError, match="a stream is open"):
            trainer.sync()
        assert trainer.info().applied_sequence == 2
    assert trainer.step(*batch(2)).sequence == 3
    with pytest.raises(RuntimeError, match="not open"):
        stream.step(*batch(9))
    with pytest.raises(RuntimeError, match="entered only once"), stream:
        pass
    assert batches(server) == [0, 1, 2]


def test_depth_limits_operations_in_flight(server, create):
    trainer = create()
    fake = server.trainers["fashion"]
    apply = fake.apply
    too_many = threading.Event()

    def hold(*arguments):
        fake.apply = apply
        assert not too_many.wait(0.2)  # No reply was sent yet.
        return apply(*arguments)

    fake.apply = hold
    with trainer.stream(depth=3) as stream:
        for number in range(3):
            stream.step(*batch(number))
        stream.step(*batch(3))
        too_many.set()
    assert batches(server) == list(range(4))


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("point", range(OPERATIONS))
def test_broken_connection_at_any_point_is_survived(server, create, point, after, crash, depth):
    trainer = create(checkpoint_every=4)
    server.fail("Step", UNAVAILABLE, skip=point, after=after, crash=crash)
    results = run(trainer, depth=depth)
    assert batches(server) == list(range(OPERATIONS))
    assert [result.sequence for result in results] == list(range(1, OPERATIONS + 1))
    assert not any(result.reply_lost for result in results)
    assert server.streams == 2
    assert trainer.step(*batch(OPERATIONS)).sequence == OPERATIONS + 1


@pytest.mark.parametrize("seed", range(20))
def test_repeatedly_broken_connections_are_survived(server, create, seed):
    chance = random.Random(seed)
    trainer = create(checkpoint_every=chance.choice([1, 3, 7]))
    for _ in range(8):
        server.fail(
            "Step", UNAVAILABLE, skip=chance.randrange(6), after=chance.random() < 0.5,
            crash=chance.random() < 0.5,
        )
    depth = chance.randint(1, 6)
    server.withhold(chance.randint(0, depth))
    results = run(trainer, operations=30, depth=depth)
    assert batches(server) == list(range(30))
    assert [result.sequence for result in results] == list(range(1, 31))
    lost = [result for result in results if result.reply_lost]
    assert all(math.isnan(result.loss) for result in lost)
    assert all(result.loss == result.sequence for result in results if not result.reply_lost)


@pytest.mark.parametrize("seed", range(10))
def test_connections_cut_at_any_byte_are_survived(server, seed):
    """The server may still process received operations when the client reconnects."""
    chance = random.Random(seed)
    cuts = [chance.randrange(300, 6000) for _ in range(5)]
    with CuttingProxy(server.address, cuts) as proxy, braid.connect(proxy.address) as client:
        client._channel.retry = RetryPolicy(attempts=50, initial_backoff=0.01, max_backoff=0.02)
        trainer = client.create_trainer("fashion", loss="mse", optimizer="SGD", checkpoint_every=9)
        results = run(trainer, operations=100, depth=chance.randint(1, 8))
        assert proxy.connections > 2
    assert batches(server) == list(range(100))
    assert [result.sequence for result in results] == list(range(1, 101))
    assert all(result.loss == result.sequence for result in results if not result.reply_lost)


def test_lost_replies_are_marked(server, create):
    server.withhold(3)
    first, second, third, *others = run(create())
    assert batches(server) == list(range(OPERATIONS))
    for sequence, result in enumerate((first, second), start=1):
        assert (result.sequence, result.reply_lost, result.step) == (sequence, True, 3)
        assert math.isnan(result.loss)
    assert (third.replayed, third.reply_lost, third.loss) == (True, False, 3.0)
    assert not any(result.reply_lost for result in others)


def test_publish_never_loses_its_reply(server, create, monkeypatch):
    """Later operations wait for its reply, so that a retry can return it."""
    trainer = create()
    fake = server.trainers["fashion"]
    work, framed = fake._work, Operation.framed
    published, sent_early = threading.Event(), threading.Event()

    def note(operation):
        if operation.method == "Step" and published.is_set():
            sent_early.set()
        return framed(operation)

    def hold(method, *arguments):
        reply = work(method, *arguments)
        if method == "Publish":
            assert not sent_early.wait(0.2)
        return reply

    fake._work = hold
    monkeypatch.setattr(Operation, "framed", note)
    server.fail("Publish", UNAVAILABLE, after=True)
    with trainer.stream(depth=4) as stream:
        stream.step(*batch(0)).result(timeout=10)
        published.set()
        version = stream.publish()
        last = stream.step(*batch(1))
    assert version.result() == 2
    assert last.result().sequence == 3
    assert [method for _, method, _ in fake.history] == ["Step", "Publish", "Step"]


def test_operation_applied_by_a_broken_connection_is_not_repeated(server, create):
    """The server applies a received operation while the client queries its state."""
    trainer = create()
    fake = server.trainers["fashion"]
    server.fail("Step", UNAVAILABLE, skip=2)

    def apply_late():
        request = server.received("Step")[2]
        fake.apply("Step", request, None)

    server.late.append(apply_late)
    run(trainer)
    assert batches(server) == list(range(OPERATIONS))


def test_completed_futures_do_not_change(server, create):
    trainer = create(checkpoint_every=100)
    with trainer.stream(depth=1) as stream:
        futures = [stream.step(*batch(number)) for number in range(4)]
        before = [future.result(timeout=10) for future in futures]
        server.fail("Step", UNAVAILABLE, crash=True)
        stream.step(*batch(4)).result(timeout=10)
        assert [future.result() for future in futures] == before
    assert batches(server) == list(range(5))
    sent = [request.sequence for request in server.received("Step")]
    assert sent == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


def test_restart_during_a_stream_is_survived(server, create):
    trainer = create(checkpoint_every=4)
    with trainer.stream(depth=3) as stream:
        futures = [stream.step(*batch(number)) for number in range(10)]
        futures[4].result(timeout=10)
        server.restart()
        futures += [stream.step(*batch(number)) for number in range(10, 20)]
    assert batches(server) == list(range(20))
    assert [future.result().sequence for future in futures] == list(range(1, 21))


def test_restart_of_an_idle_stream_is_survived(server, create):
    trainer = create(checkpoint_every=4)
    with trainer.stream(depth=3) as stream:
        for number in range(6):
            last = stream.step(*batch(number))
        last.result(timeout=10)
        server.restart()
        assert len(server.trainers["fashion"].history) == 4
        stream.step(*batch(6))
    assert batches(server) == list(range(7))


def test_earlier_single_operations_are_replayed(server, create):
    trainer = create(checkpoint_every=100)
    for number in range(3):
        trainer.step(*batch(number))
    server.fail("Step", UNAVAILABLE, skip=2, crash=True)
    with trainer.stream() as stream:
        for number in range(3, 8):
            stream.step(*batch(number))
    assert batches(server) == list(range(8))


def test_lost_operations_without_a_policy_are_an_error(server, create):
    trainer = create()
    trainer.step(*batch(0))
    trainer.save_checkpoint()
    server.fail("Step", UNAVAILABLE, skip=3, crash=True)
    with pytest.raises(braid.FailedPrecondition, match="expects operation 2.*no checkpoint policy"):
        run(trainer)
    assert batches(server) == [0]
    assert trainer.sync().applied_sequence == 1
    assert trainer.step(*batch(1)).sequence == 2


def test_failed_operation_ends_the_stream(server, create):
    trainer = create(checkpoint_every=100)
    server.fail("Step", grpc.StatusCode.INVALID_ARGUMENT, "wrong", skip=2, violations=[
        ("inputs[0].shape", "wrong"),
    ])
    futures = []
    with pytest.raises(braid.InvalidArgument, match="wrong"), trainer.stream(depth=8) as stream:
        futures = [stream.step(*batch(number)) for number in range(5)]
    assert [future.result().sequence for future in futures[:2]] == [1, 2]
    assert futures[2].exception().field == "inputs[0].shape"
    for future in futures[3:]:
        assert isinstance(future.exception(), braid.Cancelled)
        assert "the earlier operation 3 failed: wrong" in str(future.exception())
    assert batches(server) == [0, 1]
    assert trainer.step(*batch(2)).sequence == 3


def test_failed_precondition_is_raised_for_the_operation(server, create):
    trainer = create(checkpoint_every=100)
    with pytest.raises(braid.FailedPrecondition, match="no gradients"), trainer.stream() as stream:
        stream.step(*batch(0))
        failed = stream.optim_step()
    assert isinstance(failed.exception(), braid.FailedPrecondition)
    assert trainer.step(*batch(1)).sequence == 2


def test_calls_after_a_failure_raise_it(server, create):
    server.fail("Step", grpc.StatusCode.INTERNAL, "broken")
    with pytest.raises(braid.Internal, match="broken"), create().stream() as stream:
        stream.step(*batch(0)).exception(timeout=10)
        stream.step(*batch(1))
        raise AssertionError("the stream accepted another operation")


def test_another_client_is_detected(server, client, create):
    trainer = create(checkpoint_every=100)
    with pytest.raises(braid.BraidError, match="another client operates") as caught:
        with trainer.stream(depth=1) as stream:
            stream.step(*batch(0)).result(timeout=10)
            client.trainer("fashion").step(*batch(7))
            stream.step(*batch(1))
    assert isinstance(caught.value, braid.Aborted)
    assert batches(server) == [0, 7]


def test_checkpoint_restored_by_another_client_is_kept(server, client, create):
    """The server did not restart, so nothing is replayed."""
    trainer = create(checkpoint_every=2)
    with pytest.raises(braid.FailedPrecondition, match="another client restored a checkpoint"):
        with trainer.stream(depth=1) as stream:
            for number in range(3):
                stream.step(*batch(number)).result(timeout=10)
            client.trainer("fashion").restore_checkpoint()
            stream.step(*batch(3))
    assert batches(server) == [0, 1]


def test_exception_in_the_block_aborts_the_stream(server, create):
    trainer = create()
    release = threading.Event()
    fake = server.trainers["fashion"]
    apply = fake.apply
    fake.apply = lambda *arguments: release.wait(10) and apply(*arguments)
    with pytest.raises(KeyError), trainer.stream() as stream:
        future = stream.step(*batch(0))
        raise KeyError
    assert isinstance(future.exception(timeout=10), braid.Cancelled)
    release.set()
    fake.apply = apply
    trainer.sync()
    trainer.step(*batch(1))


def test_unreachable_server_raises_unavailable_after_the_timeout(server, create):
    trainer = create(checkpoint_every=100)
    server.stop()
    with pytest.raises(braid.Unavailable, match=server.address):
        run(trainer, timeout=0.3)


def test_silent_server_raises_deadline_exceeded(server, create):
    trainer = create(checkpoint_every=100)
    release = threading.Event()
    server.trainers["fashion"].apply = lambda *_: release.wait(10)
    try:
        with pytest.raises(braid.DeadlineExceeded, match="no reply in 0.2 seconds"):
            run(trainer, timeout=0.2)
    finally:
        release.set()


def test_several_threads_may_submit(server, create):
    trainer = create(checkpoint_every=7)
    with trainer.stream(depth=3) as stream:
        threads = [
            threading.Thread(target=lambda: [stream.step(*batch(0)) for _ in range(10)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert batches(server) == [0] * 40


@pytest.mark.parametrize("arguments", [{"depth": 0}, {"buffer_operations": 0}])
def test_limits_below_one_are_rejected(create, arguments):
    with pytest.raises(ValueError, match=rf"{next(iter(arguments))}: 0 \(expected at least 1\)"):
        create().stream(**arguments)
