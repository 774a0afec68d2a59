"""A stream's operations are applied in order, each once, whatever becomes of connections."""

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
    """So many steps over a stream. Returns their results."""
    with trainer.stream(depth, **options) as stream:
        futures = [stream.step(*batch(number)) for number in range(operations)]
    return [future.result(timeout=0) for future in futures]


def test_results_come_in_order(server, create):
    results = run(create())
    assert [result.sequence for result in results] == list(range(1, OPERATIONS + 1))
    assert [result.step for result in results] == list(range(1, OPERATIONS + 1))
    assert not any(result.reply_lost or result.replayed for result in results)
    assert batches(server) == list(range(OPERATIONS))
    assert server.streams == 1


def test_every_operation(server, create):
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


def test_the_handle_goes_on_after_the_stream(server, create):
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
    with pytest.raises(RuntimeError, match="entered once"), stream:
        pass
    assert batches(server) == [0, 1, 2]


def test_depth_bounds_what_is_under_way(server, create):
    trainer = create()
    fake = server.trainers["fashion"]
    apply = fake.apply
    too_many = threading.Event()

    def hold(*arguments):
        fake.apply = apply
        assert not too_many.wait(0.2)  # Nothing has been replied.
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
def test_a_connection_that_breaks_at_any_point(server, create, point, after, crash, depth):
    trainer = create(checkpoint_every=4)
    server.fail("Step", UNAVAILABLE, skip=point, after=after, crash=crash)
    results = run(trainer, depth=depth)
    assert batches(server) == list(range(OPERATIONS))
    assert [result.sequence for result in results] == list(range(1, OPERATIONS + 1))
    assert not any(result.reply_lost for result in results)
    assert server.streams == 2
    assert trainer.step(*batch(OPERATIONS)).sequence == OPERATIONS + 1


@pytest.mark.parametrize("seed", range(20))
def test_connections_that_break_again_and_again(server, create, seed):
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
def test_connections_that_are_cut_at_any_byte(server, seed):
    """The server may go on with what it has received, while the client comes back."""
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


def test_replies_that_are_lost_are_said_to_be(server, create):
    server.withhold(3)
    first, second, third, *others = run(create())
    assert batches(server) == list(range(OPERATIONS))
    for sequence, result in enumerate((first, second), start=1):
        assert (result.sequence, result.reply_lost, result.step) == (sequence, True, 3)
        assert math.isnan(result.loss)
    assert (third.replayed, third.reply_lost, third.loss) == (True, False, 3.0)
    assert not any(result.reply_lost for result in others)


def test_a_publish_keeps_its_reply(server, create, monkeypatch):
    """Nothing is sent behind it before it is answered, so the server can be asked again."""
    trainer = create()
    fake = server.trainers["fashion"]
    work, framed = fake._work, Operation.framed
    published, sent_behind = threading.Event(), threading.Event()

    def note(operation):
        if operation.method == "Step" and published.is_set():
            sent_behind.set()
        return framed(operation)

    def hold(method, *arguments):
        reply = work(method, *arguments)
        if method == "Publish":
            assert not sent_behind.wait(0.2)
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


def test_what_the_broken_connection_still_applies_is_not_applied_twice(server, create):
    """The server works off what it received while the client asks where it stands."""
    trainer = create()
    fake = server.trainers["fashion"]
    server.fail("Step", UNAVAILABLE, skip=2)

    def work_off():
        request = server.received("Step")[2]
        fake.apply("Step", request, None)

    server.late.append(work_off)
    run(trainer)
    assert batches(server) == list(range(OPERATIONS))


def test_futures_that_are_done_stay_as_they_are(server, create):
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


def test_a_restart_in_the_middle(server, create):
    trainer = create(checkpoint_every=4)
    with trainer.stream(depth=3) as stream:
        futures = [stream.step(*batch(number)) for number in range(10)]
        futures[4].result(timeout=10)
        server.restart()
        futures += [stream.step(*batch(number)) for number in range(10, 20)]
    assert batches(server) == list(range(20))
    assert [future.result().sequence for future in futures] == list(range(1, 21))


def test_a_restart_while_nothing_is_under_way(server, create):
    trainer = create(checkpoint_every=4)
    with trainer.stream(depth=3) as stream:
        for number in range(6):
            last = stream.step(*batch(number))
        last.result(timeout=10)
        server.restart()
        assert len(server.trainers["fashion"].history) == 4
        stream.step(*batch(6))
    assert batches(server) == list(range(7))


def test_what_single_calls_did_before_is_sent_again_too(server, create):
    trainer = create(checkpoint_every=100)
    for number in range(3):
        trainer.step(*batch(number))
    server.fail("Step", UNAVAILABLE, skip=2, crash=True)
    with trainer.stream() as stream:
        for number in range(3, 8):
            stream.step(*batch(number))
    assert batches(server) == list(range(8))


def test_without_a_policy_a_restart_that_loses_something_is_an_error(server, create):
    trainer = create()
    trainer.step(*batch(0))
    trainer.save_checkpoint()
    server.fail("Step", UNAVAILABLE, skip=3, crash=True)
    with pytest.raises(braid.FailedPrecondition, match="expects operation 2.*no checkpoint policy"):
        run(trainer)
    assert batches(server) == [0]
    assert trainer.sync().applied_sequence == 1
    assert trainer.step(*batch(1)).sequence == 2


def test_an_operation_that_fails_ends_the_stream(server, create):
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
        assert "operation 3, before this one, failed: wrong" in str(future.exception())
    assert batches(server) == [0, 1]
    assert trainer.step(*batch(2)).sequence == 3


def test_an_operation_out_of_place_fails_as_itself(server, create):
    trainer = create(checkpoint_every=100)
    with pytest.raises(braid.FailedPrecondition, match="no gradients"), trainer.stream() as stream:
        stream.step(*batch(0))
        failed = stream.optim_step()
    assert isinstance(failed.exception(), braid.FailedPrecondition)
    assert trainer.step(*batch(1)).sequence == 2


def test_after_a_failure_calls_raise_it(server, create):
    server.fail("Step", grpc.StatusCode.INTERNAL, "broken")
    with pytest.raises(braid.Internal, match="broken"), create().stream() as stream:
        stream.step(*batch(0)).exception(timeout=10)
        stream.step(*batch(1))
        raise AssertionError("the stream took another operation")


def test_another_client_is_noticed(server, client, create):
    trainer = create(checkpoint_every=100)
    with pytest.raises(braid.BraidError, match="another client operates") as caught:
        with trainer.stream(depth=1) as stream:
            stream.step(*batch(0)).result(timeout=10)
            client.trainer("fashion").step(*batch(7))
            stream.step(*batch(1))
    assert isinstance(caught.value, braid.Aborted)
    assert batches(server) == [0, 7]


def test_a_restored_checkpoint_is_not_undone(server, client, create):
    """Of another client: the server was not started again, so nothing is sent again."""
    trainer = create(checkpoint_every=2)
    with pytest.raises(braid.FailedPrecondition, match="has restored a checkpoint"):
        with trainer.stream(depth=1) as stream:
            for number in range(3):
                stream.step(*batch(number)).result(timeout=10)
            client.trainer("fashion").restore_checkpoint()
            stream.step(*batch(3))
    assert batches(server) == [0, 1]


def test_leaving_by_an_exception_gives_up(server, create):
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


def test_a_server_that_stays_away_is_given_up_at_the_timeout(server, create):
    trainer = create(checkpoint_every=100)
    server.stop()
    with pytest.raises(braid.Unavailable, match=server.address):
        run(trainer, timeout=0.3)


def test_a_server_that_says_nothing_is_given_up_at_the_timeout(server, create):
    trainer = create(checkpoint_every=100)
    release = threading.Event()
    server.trainers["fashion"].apply = lambda *_: release.wait(10)
    try:
        with pytest.raises(braid.DeadlineExceeded, match="no reply in 0.2 seconds"):
            run(trainer, timeout=0.2)
    finally:
        release.set()


def test_several_threads(server, create):
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
def test_bounds_below_one(create, arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be at least 1; got 0"):
        create().stream(**arguments)
