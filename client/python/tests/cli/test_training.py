"""`braid train` against a fake server, whose loss is the number of the step."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

import braid
from braid.cli.training import Plan, batches_taken


def steps(ended):
    return [(e["epoch"], e["step"], e["loss"]) for e in ended.events if e["event"] == "step"]


def rows(server):
    """The input values of each step that was received."""
    return [
        np.frombuffer(request.inputs[0].data, np.float32).tolist()
        for request in server.received("Step")
    ]


def test_trains_publishes_and_deletes_the_trainer(call, server, data):
    ended = call("train", "toy", *data, "--batch-size", 2, "--epochs", 2, "--publish")
    assert (ended.code, ended.err) == (0, "")
    out = ended.out.splitlines()
    assert out[0] == "trainer toy from toy version 1 on cpu:0, cpu:1"
    assert out[1].startswith("epoch 1/2  3 steps  mean loss 1.8000  ")
    assert out[2].startswith("epoch 2/2  3 steps  mean loss 4.8000  ")
    assert out[3].startswith("trained 6 steps on 10 rows in ")
    assert out[3].endswith(", last epoch's mean loss 4.8000")
    assert out[4] == "published toy version 2"
    assert server.trainers == {}


def test_visits_the_rows_in_order_without_shuffle(call, server, data):
    assert call("train", "toy", *data, "--batch-size=2", "--epochs=2", "--no-shuffle").code == 0
    assert rows(server) == [[0, 1], [2, 3], [4]] * 2


def test_shuffles_each_epoch_with_the_seed_of_the_trainer(call, server, data):
    orders = []
    for seed in ("1", "1", "2"):
        server.calls.clear()
        assert call("train", "toy", *data, "--batch-size=5", "--epochs=2", "--seed", seed).code == 0
        orders.append(rows(server))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0][0] != orders[0][1]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for each in orders for order in each)


def test_events_as_json(call, data):
    ended = call("train", "toy", *data, "--batch-size=3", "--split", "--json", "--publish")
    assert [event["event"] for event in ended.events] == [
        "trainer", "split", "step", "step", "epoch", "summary", "published"
    ]
    by_name = {event["event"]: event for event in ended.events}
    assert by_name["trainer"] == {
        "event": "trainer", "trainer": "toy", "model": "toy", "base_version": 1, "step": 0,
        "devices": ["cpu:0", "cpu:1"],
    }
    assert by_name["split"]["chunks"][0].keys() == {
        "stage", "device", "rows", "inputs", "outputs"
    }
    assert by_name["summary"].keys() == {
        "event", "steps", "rows", "seconds", "rows_per_second", "mean_loss"
    }
    assert by_name["published"] == {"event": "published", "model": "toy", "version": 2}


def test_split_is_reported_of_the_first_batch_alone(call, server, data):
    ended = call("train", "toy", *data, "--batch-size=2", "--split")
    assert [request.report_split for request in server.received("Step")] == [True, False, False]
    assert ended.out.count("total ") == 1


def test_last_batch_can_be_left_out(call, server, data):
    assert call("train", "toy", *data, "--batch-size=2", "--drop-last").code == 0
    assert [len(batch) for batch in rows(server)] == [2, 2]
    ended = call("train", "toy", *data, "--batch-size=6", "--drop-last")
    assert ended.code == 2
    assert ended.err == (
        "braid: --drop-last: leaves no batch of the 5 rows (expected --batch-size 6 or more rows)\n"
    )


def test_attach_continues_where_a_run_ended(call, server, data):
    options = [*data, "--batch-size=2"]
    assert call("train", "toy", *options, "--epochs=3", "--seed=4", "--keep-trainer").code == 0
    whole = rows(server)
    for _ in range(2):
        server.trainers.clear()
        server.calls.clear()
        assert call("train", "toy", *options, "--epochs=1", "--seed=4", "--keep-trainer").code == 0
    ended = call("train", "--attach=toy", *options, "--epochs=3", "--json")
    assert rows(server) == whole
    assert steps(ended)[0][:2] == (2, 1)
    assert "toy" in server.trainers
    again = call("train", "--attach=toy", *options, "--epochs=3")
    assert again.code == 2
    assert again.err == (
        "braid: --attach: trainer toy has already taken 9 batches (--epochs 3 is 9 batches from the "
        "trainer's start; use a larger --epochs)\n"
    )
    other = call("train", "other", "--attach=toy", *options, "--epochs=9")
    assert other.err == "braid: --attach: trainer toy trains model toy (MODEL is other)\n"


def test_skipped_batches_are_batches_taken(client):
    info = client.create_trainer("toy", loss="mse", optimizer="SGD").info()
    assert batches_taken(info) == 0


def test_lost_replies_have_no_loss(call, server, data):
    server.withhold(2)
    ended = call("train", "toy", *data, "--batch-size=1", "--depth=3", "--json")
    assert ended.code == 0
    assert [loss for _, _, loss in steps(ended)] == [None, 2.0, 3.0, 4.0, 5.0]


def test_a_step_that_fails_ends_the_training(call, server, data):
    server.fail("Step", grpc.StatusCode.INVALID_ARGUMENT, "inputs[0]: not FP64", skip=1)
    ended = call("train", "toy", *data, "--batch-size=2")
    assert ended.code == 1
    assert ended.err == "braid: inputs[0]: not FP64 (INVALID_ARGUMENT)\n"
    assert server.trainers == {}


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_last_batch_that_is_too_small_is_named(call, server, data, depth):
    message = "inputs: too few rows (drop_last=True)"
    server.fail("Step", grpc.StatusCode.INVALID_ARGUMENT, message, skip=2)
    ended = call("train", "toy", *data, "--batch-size=2", "--depth", depth)
    assert ended.err == (
        f"braid: {message}; the batch is the last of an epoch, with 1 rows: --drop-last leaves it "
        "out (INVALID_ARGUMENT)\n"
    )


def test_a_trainer_that_may_be_left_is_named(call, server, data):
    server.fail("DeleteTrainer", grpc.StatusCode.INTERNAL, "no")
    ended = call("train", "toy", *data)
    assert ended.code == 1
    assert ended.err == "braid: the trainer toy may be left on the server\nbraid: no (INTERNAL)\n"


def test_a_trainer_that_exists_is_an_error(call, client, data):
    client.create_trainer("toy", loss="mse", optimizer="SGD")
    ended = call("train", "toy", *data)
    assert ended.code == 1 and "(ALREADY_EXISTS)" in ended.err


@pytest.mark.parametrize("rows, batch_size, drop_last, count", [
    (5, 2, False, 3), (5, 2, True, 2), (5, 9, True, 0), (4, 2, False, 2),
])
def test_steps_of_an_epoch(rows, batch_size, drop_last, count):
    assert Plan(batch_size=batch_size, drop_last=drop_last).steps_per_epoch(rows) == count


def start(server, *arguments, **options):
    package = str(Path(braid.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "braid", "--server", server.address, *arguments],
        env={**os.environ, "PYTHONPATH": package}, text=True, **options,
    )


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_after_the_step_and_deletes_the_trainer(server, data, number, code):
    process = start(server, "train", "toy", *data, "--epochs=1000000", "--json",
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while '"event":"step"' not in process.stdout.readline():
        pass
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err
    assert err.startswith("braid: interrupted after ") and err.endswith(" steps (CANCELLED)\n")
    assert server.trainers == {}


def test_a_reader_that_goes_away_ends_it_and_deletes_the_trainer(server, data):
    process = start(server, "train", "toy", *data, "--epochs=1000000", "--json",
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ""
    assert server.trainers == {}


def test_interrupted_while_it_waits_ends_with_130(server):
    waits, ends = threading.Event(), threading.Event()

    def wait(request, context):
        waits.set()
        ends.wait(60)

    server.RepositoryIndex = wait
    process = start(server, "models", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert waits.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    ends.set()
    assert (process.returncode, out, err.strip()) == (130, "", "")


def test_output_that_cannot_be_written_ends_with_1(server):
    with open("/dev/full", "w") as full:
        process = start(server, "models", stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "braid: stdout: No space left on device\n")


def test_help_imports_neither_grpc_nor_numpy():
    code = (
        "import sys\nfrom braid.cli import main\nmain(['train', '--help'])\nmain(['--help'])\n"
        "print(sorted({'grpc', 'google.protobuf', 'numpy', 'torch', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(Path(braid.__file__).parents[1])},
    )
    assert done.stdout.splitlines()[-1] == "[]"
