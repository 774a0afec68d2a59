"""Checkpoints: their contents, their number, and resuming training from them."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import braid
import grpc
import numpy as np
import pytest
import torch
from e2e.support import durable, models, oracle
from e2e.support.durable import DurableServer, assert_same_bits, batch
from e2e.support.inference import assert_close, expected
from e2e.support.polling import wait_until
from e2e.support.protocol import Stub, channel
from e2e.support.raw_trainer import SERVICE, RawTrainer
from e2e.support.server import Server
from torch import nn

CODES = grpc.StatusCode
SECONDS = 60
SGD = {"name": "SGD", "lr": 0.05, "momentum": 0.9}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, format: str) -> Iterator[DurableServer]:
    """A server that tests do not stop."""
    with durable.serving(tmp_path_factory.mktemp("checkpoints"), format=format) as server:
        yield server


def create(client: braid.Client, name: str, **options: Any) -> braid.Trainer:
    options = {"loss": "cross_entropy", "optimizer": SGD, **options}
    return client.create_trainer("noisy", name=name, **options)


def step(trainer: braid.Trainer, *numbers: int) -> None:
    for number in numbers:
        trainer.step(*batch(number))


def read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """Parses the format directly: a length, a JSON object and the data."""
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    ends = sorted(entry["data_offsets"] for entry in header.values())
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert 8 + length + (ends[-1][1] if ends else 0) == len(data)
    return {
        name: np.frombuffer(
            data[8 + length + entry["data_offsets"][0] : 8 + length + entry["data_offsets"][1]],
            types[entry["dtype"]],
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }


def test_saved_checkpoint_is_listed(server: DurableServer, client: braid.Client) -> None:
    trainer = create(client, "listed")
    (first,) = trainer.list_checkpoints()  # Creating a trainer writes a checkpoint.
    assert (first.step, first.sequence) == (0, 0)
    step(trainer, 0)
    trainer.forward(batch(1)[0])
    saved = trainer.save_checkpoint()
    assert trainer.list_checkpoints() == [first, saved]
    assert (saved.step, saved.sequence) == (1, 2)
    assert saved.name == "step-000000001-sequence-000000002"
    age = datetime.now(timezone.utc) - saved.created
    assert timedelta(0) <= age < timedelta(seconds=SECONDS)
    files = (server.checkpoints("listed") / saved.name).iterdir()
    on_disk = sum(path.stat().st_size for path in files if path.name != "manifest.json")
    assert saved.bytes == on_disk > 0
    assert trainer.info().durable_sequence == 2


def test_training_resumes_from_a_restored_checkpoint(client: braid.Client) -> None:
    """Also from a checkpoint that is not the newest; it becomes the newest."""
    trainer = create(client, "restored", checkpoint_keep=0)
    step(trainer, 0, 1, 2)
    early = trainer.save_checkpoint()
    step(trainer, 3, 4, 5)
    wanted = trainer.state_dict()
    late = trainer.save_checkpoint()
    for name in (early.name, None):
        info = trainer.restore_checkpoint(name)
        assert (info.step, info.applied_sequence, info.durable_sequence) == (3, 3, 3)
        step(trainer, 3, 4, 5)
        assert_same_bits(trainer.state_dict(), wanted)
    names = [checkpoint.name for checkpoint in trainer.list_checkpoints()]
    assert names[-2:] == [late.name, early.name]
    with pytest.raises(braid.NotFound, match="no-such-one"):
        trainer.restore_checkpoint("no-such-one")
    assert_same_bits(trainer.state_dict(), wanted)


@pytest.mark.parametrize(("keep", "kept"), [(0, 6), (1, 1), (2, 2), (3, 3)])
def test_only_the_newest_checkpoints_are_kept(
    server: DurableServer, client: braid.Client, keep: int, kept: int
) -> None:
    trainer = create(client, f"keeps-{keep}", checkpoint_keep=keep)
    for number in range(5):
        step(trainer, number)
        trainer.save_checkpoint()
    listed = [checkpoint.sequence for checkpoint in trainer.list_checkpoints()]
    assert listed == list(range(6))[-kept:]
    on_disk = [path.name for path in server.checkpoints(trainer.name).iterdir()]
    assert sorted(on_disk) == [checkpoint.name for checkpoint in trainer.list_checkpoints()]


def test_checkpoints_are_written_periodically(client: braid.Client) -> None:
    trainer = create(client, "by-the-clock", checkpoint_every_seconds=0.2)
    step(trainer, 0)
    wait_until(lambda: len(trainer.list_checkpoints()) > 1)
    # The server writes no checkpoint without new operations.
    assert [checkpoint.sequence for checkpoint in trainer.list_checkpoints()] == [0, 1]


# State besides weights that a checkpoint must hold, as arguments of create_trainer.
STATEFUL = {
    "adamw-plateau": {
        "optimizer": {"name": "AdamW", "lr": 0.01, "amsgrad": True},
        "schedule": {
            "name": "ReduceLROnPlateau",
            "interval": 2,
            "patience": 0,
            "factor": 0.5,
            "threshold": 0.5,
        },
        "clip_grad_norm": 1.0,
        "seed": 3,
    },
    "sgd-one-cycle": {
        "optimizer": {**SGD, "nesterov": True},
        "schedule": {"name": "OneCycleLR", "max_lr": 0.1, "total_steps": 12},
        "clip_grad_value": 0.1,
    },
    "rmsprop-warm-up": {
        "optimizer": {"name": "RMSprop", "lr": 0.01, "momentum": 0.9, "centered": True},
        "schedule": {"name": "StepLR", "step_size": 2, "warmup": {"steps": 5}},
    },
    "adagrad-groups": {
        "optimizer": {"name": "Adagrad", "lr_decay": 0.1},
        "parameter_groups": [{"pattern": "bias$", "lr": 0.1}, {"pattern": "4", "frozen": True}],
    },
    # This large scale overflows, so it is halved, and doubled soon after.
    "float16": {
        "optimizer": SGD,
        "precision": "float16",
        "grad_scaler": {"init_scale": 2.0**24, "growth_interval": 2},
    },
}
# Half of them before the restart, when two batches wait for an update.
BEFORE = ["step", "step", "step", "forward_backward", "forward_backward"]
AFTER = ["forward_backward", "optim_step", "step", "forward", "step", "step"]


def operate(trainer: braid.Trainer, kinds: list[str], first: int) -> list[tuple]:
    """Runs operations of these kinds on the batches from `first` on. Returns their replies."""
    replies = []
    for number, kind in enumerate(kinds, first):
        inputs, targets = batch(number)
        arguments = {"optim_step": (), "forward": (inputs,)}.get(kind, (inputs, targets))
        result = getattr(trainer, kind)(*arguments)
        loss = getattr(result, "loss", None)
        replies.append(
            (result.sequence, result.step, loss, result.lr, result.gradient_norm, result.skipped)
        )
    return replies


def forward(trainer: braid.Trainer, number: int) -> dict[str, np.ndarray]:
    """Runs a Forward that retains its graph. Returns gradients for it."""
    return dict(trainer.forward(batch(number)[0], keep_graph=True).outputs)


def client_steps(trainer: braid.Trainer, *numbers: int) -> None:
    for number in numbers:
        trainer.backward(forward(trainer, number))
        trainer.optim_step()


def test_shutdown_with_retained_graph_loses_nothing(tmp_path: Path, format: str) -> None:
    """The client resends its Forward, which changes batch norm's statistics once."""
    options = {"loss_mode": "client", "optimizer": SGD, "checkpoint_every": 1000}
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        stopped = client.create_trainer("noisy", name="stopped", **options)
        undisturbed = client.create_trainer("noisy", name="undisturbed", **options)
        client_steps(undisturbed, 0, 1, 2, 3)
        client_steps(stopped, 0, 1, 2)
        gradients = forward(stopped, 3)
        server.start_again(signal.SIGTERM)
        assert client.trainer("stopped").info().step == 3
        stopped.backward(gradients)
        stopped.optim_step()
        assert_same_bits(stopped.state_dict(), undisturbed.state_dict())


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_training_is_bit_identical_after_a_restart(
    tmp_path: Path, ending: signal.Signals, format: str
) -> None:
    """Covers optimizer, schedule, scaler, random numbers and accumulated gradients."""
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        replies = {}
        for name, options in STATEFUL.items():
            trainer = create(client, name, **options)
            replies[name] = operate(trainer, BEFORE, 0)
            if ending == signal.SIGKILL:
                trainer.save_checkpoint()
        server.start_again(ending)
        for name, options in STATEFUL.items():
            trainer = client.trainer(name)
            assert trainer.info().accumulated == 2
            replies[name] += operate(trainer, AFTER, len(BEFORE))
            twin = create(client, f"{trainer.name}-twin", **options)
            assert replies[name] == operate(twin, BEFORE + AFTER, 0), name
            assert_same_bits(trainer.state_dict(), twin.state_dict())
    skipped = [reply[-1] for reply in replies["float16"]]
    assert True in skipped[: len(BEFORE)] and False in skipped
    rates = {reply[3] for reply in replies["adamw-plateau"]} - {None}
    assert len(rates) > 2, "the plateau was never reached"


@pytest.mark.parametrize("devices", ["cpu*1", "cpu*3", "cpu*4"])
def test_training_resumes_with_another_number_of_replicas(
    tmp_path: Path, devices: str, format: str
) -> None:
    """Also with batches that wait for an update. In float64,
    where the order of sums matters little."""
    batches = list(oracle.batches_of("chain64", "cross_entropy", 19, steps=9))

    def learn(trainer: braid.Trainer, first: int, last: int) -> None:
        for x, target in batches[first:last]:
            trainer.forward_backward({"x": x}, {"target": target})
            trainer.step({"x": x[:5]}, {"target": target[:5]})

    options = {"loss": "cross_entropy", "optimizer": {"name": "AdamW", "lr": 0.01}}
    chain = models.make("chain64")
    example = torch.zeros(1, 10).double()
    if format == "pair":
        models.export_pair(tmp_path / "models/chain64", chain, {"x": example})
    else:
        models.export(tmp_path / "models/chain64", chain, inputs=[example])
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        moving = client.create_trainer("chain64", name="moving", **options)
        learn(moving, 0, 4)
        x, target = batches[4]
        moving.forward_backward({"x": x}, {"target": target})
        moving.save_checkpoint()
        server.replace_flag("--devices", devices)
        server.start_again()
        moving = client.trainer("moving")
        assert len(moving.info().devices) == int(devices[-1])
        assert moving.info().accumulated == 1
        learn(moving, 5, 9)
        staying = client.create_trainer("chain64", name="staying", **options)
        learn(staying, 0, 4)
        staying.forward_backward({"x": x}, {"target": target})
        learn(staying, 5, 9)
        oracle.assert_equal_runs(
            oracle.Run([], moving.state_dict()), oracle.Run([], staying.state_dict()), 1e-12
        )


def test_pytorch_loads_a_checkpoint(server: DurableServer, client: braid.Client) -> None:
    """Both the files in the model's format and the separate weights."""
    trainer = create(client, "readable")
    step(trainer, 0, 1)
    saved = trainer.save_checkpoint()
    directory = server.checkpoints("readable") / saved.name
    wanted = trainer.state_dict()
    assert_same_bits(durable.weights_in(directory), wanted)
    weights = read_safetensors((directory / "weights.safetensors").read_bytes())
    assert_same_bits({name: weights[name] for name in wanted}, wanted)
    assert_equals_the_trainer(durable.make_noisy(), wanted, trainer)


def assert_equals_the_trainer(
    module: nn.Module, weights: dict[str, np.ndarray], trainer: braid.Trainer
) -> None:
    x = batch(2)[0]["x"]
    module.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    (outputs,) = trainer.forward({"x": x}, mode="eval").outputs.values()
    assert_close(outputs, expected(module, x))


def test_checkpoints_store_only_what_training_changes(tmp_path: Path, format: str) -> None:
    """Trainers share the files of the model that they started from."""
    frozen = [{"pattern": r"^layers\.0\.", "frozen": True}]
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        saved = []
        for name in ("first", "second"):
            trainer = create(client, name, parameter_groups=frozen)
            step(trainer, 0)
            saved.append(server.checkpoints(name) / trainer.save_checkpoint().name)
        shared = list((server.data / "shared").iterdir())
        assert len(shared) == (1 if format == "torchscript" else 2)
        # In "shared", and in two checkpoints of each trainer.
        assert [path.stat().st_nlink for path in shared] == [5] * len(shared)
        for directory in saved:
            weights = read_safetensors((directory / "weights.safetensors").read_bytes())
            state = trainer.state_dict()
            assert weights.keys() == {name for name in state if not name.startswith("layers.0.")}
            assert_same_bits(durable.weights_in(directory), state)
        server.start_again()
        assert_same_bits(client.trainer("second").state_dict(), state)
        for name in ("first", "second"):
            client.trainer(name).save_checkpoint()
        assert set((server.data / "shared").iterdir()) == set(shared)
        client.trainer("first").delete()
        assert set((server.data / "shared").iterdir()) == set(shared)
        client.trainer("second").delete()
        assert not list((server.data / "shared").iterdir())


def test_download_of_weights(client: braid.Client) -> None:
    trainer = create(client, "weights")
    step(trainer, 0, 1)
    wanted = trainer.state_dict()
    file = io.BytesIO()
    assert trainer.download(file, format="safetensors") == len(file.getvalue())
    weights = read_safetensors(file.getvalue())
    assert_same_bits({name: weights[name] for name in wanted}, wanted)
    assert weights.keys() == wanted.keys()
    assert_equals_the_trainer(durable.make_noisy(), weights, trainer)


def test_download_of_a_model(
    server: DurableServer, client: braid.Client, tmp_path: Path, format: str
) -> None:
    """The download is a version that another server can serve, with the trainer's weights."""
    trainer = create(client, "downloaded")
    step(trainer, 0, 1)
    version = tmp_path / "models/downloaded/1"
    size = trainer.download(version)
    assert size == sum(file.stat().st_size for file in version.iterdir())
    if format == "pair":
        served = server.repository / "noisy/1/model.pt2"
        assert (version / "model.pt2").read_bytes() == served.read_bytes()
    else:
        assert not torch.jit.load(version / "model.pt").training
    assert_same_bits(durable.weights_in(version), trainer.state_dict())
    x = batch(2)[0]
    (wanted,) = trainer.forward(x, mode="eval").outputs.values()
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run") as other:
        with braid.connect(other.address) as elsewhere:
            (outputs,) = elsewhere.infer("downloaded", x).values()
    np.testing.assert_allclose(outputs, wanted, rtol=1e-5, atol=1e-6)


def test_file_of_unknown_format_is_rejected(
    client: braid.Client, tmp_path: Path, format: str
) -> None:
    trainer = create(client, "another-format")
    asked, words = {
        "torchscript": ("package", ("TORCHSCRIPT", "SAFETENSORS")),
        "pair": ("torchscript", ("exported pair", "PACKAGE", "SAFETENSORS")),
    }[format]
    with pytest.raises(braid.InvalidArgument) as caught:
        trainer.download(tmp_path / "model", format=asked)
    assert caught.value.field == "format"
    for word in ("noisy", *words):
        assert word in caught.value.message
    suffix, fits = {"torchscript": (".pt2", ".pt"), "pair": (".pt", ".pt2")}[format]
    with pytest.raises(braid.InvalidArgument, match=rf"expected the suffix .*\{fits} for"):
        trainer.download(tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_backward_succeeds_after_a_restart(
    tmp_path: Path, ending: signal.Signals, format: str
) -> None:
    """No checkpoint separates a Forward from its Backward, so the client can resend both."""

    def forward(trainer: braid.Trainer, number: int) -> dict[str, np.ndarray]:
        outputs = trainer.forward(batch(number)[0], keep_graph=True).outputs
        return {name: output / len(output) for name, output in outputs.items()}

    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        trainers = [
            create(client, name, loss=None, loss_mode="client", checkpoint_every=1, seed=5)
            for name in ("disturbed", "undisturbed")
        ]
        for trainer in trainers:
            for number in (0, 1):
                gradients = forward(trainer, number)
                if trainer.name == "disturbed" and number == 1:
                    listed = [saved.sequence for saved in trainer.list_checkpoints()]
                    assert trainer.info().applied_sequence not in listed
                    server.start_again(ending)
                trainer.backward(gradients)
                trainer.optim_step()
        assert_same_bits(trainers[0].state_dict(), client.trainer("undisturbed").state_dict())


def test_backward_succeeds_after_a_restart_with_a_full_buffer(
    tmp_path: Path, format: str
) -> None:
    """The client does not request a checkpoint between the two either."""
    with durable.serving(tmp_path, format=format) as server, durable.connect(server) as client:
        trainers = [
            create(client, name, loss=None, loss_mode="client", checkpoint_every=1000)
            for name in ("disturbed", "undisturbed")
        ]
        trainers[0]._handle.log.limit(None, 1)
        for number in (0, 1):
            for trainer in trainers:
                outputs = trainer.forward(batch(number)[0], keep_graph=True).outputs
                trainer.backward(outputs)
            server.start_again()
            for trainer in trainers:
                trainer.optim_step()
        assert_same_bits(trainers[0].state_dict(), trainers[1].state_dict())


def test_saving_keeps_the_retained_graph(client: braid.Client) -> None:
    trainer = create(client, "saved-between", loss=None, loss_mode="client")
    outputs = trainer.forward(batch(0)[0], keep_graph=True).outputs
    trainer.save_checkpoint()
    trainer.backward(outputs)
    assert trainer.optim_step().step == 1


def test_restore_of_another_trainer_keeps_the_retained_graph(client: braid.Client) -> None:
    """They start from the same parameters."""
    trainer, other = (
        create(client, name, loss=None, loss_mode="client") for name in ("retaining", "going-back")
    )
    outputs = trainer.forward(batch(0)[0], keep_graph=True).outputs
    other.restore_checkpoint()
    trainer.backward(outputs)
    assert trainer.optim_step().step == 1


RECORDED = [
    ("Step", True, {"report_split": True, "hyper_parameters": {"lr": 0.3}}),
    ("ForwardBackward", True, {}),
    ("OptimStep", False, {}),
    ("Forward", True, {"mode": 2}),
]


@pytest.mark.parametrize(("method", "takes_batch", "fields"), RECORDED)
def test_recorded_reply_survives_a_restart(
    tmp_path: Path, method: str, takes_batch: bool, fields: dict
) -> None:
    """The last operation is identified by number and payload. Its reply is equal bit for bit."""

    def as_replayed(reply: Any) -> Any:
        copy = type(reply)()
        copy.CopyFrom(reply)
        copy.status.replayed = True
        copy.status.durable_sequence = copy.status.applied_sequence
        copy.status.ClearField("phases")
        return copy

    arguments = batch(1) if takes_batch else ()
    options = {"clipping": {"max_norm": 0.1}}
    with durable.serving(tmp_path) as server, durable.connect(server) as client:
        raw = RawTrainer(
            server.address, "noisy", {"name": "cross_entropy"}, {"adamw": {}}, options
        )
        raw.apply("ForwardBackward", *batch(0))
        request = raw.request(method, *arguments, **fields)
        first = raw.apply(method, *arguments, **fields)
        client.trainer(raw.name).save_checkpoint()
        server.start_again()
        with channel(server.address) as connection:
            raw.stub = Stub(connection, SERVICE)
            before = raw.state()
            again = raw.send(method, request)
            again.status.ClearField("phases")
            assert again == as_replayed(first)
            other = raw.request("Step", *batch(2))
            for sequence, code in ((2, CODES.ABORTED), (4, CODES.FAILED_PRECONDITION)):
                other.sequence = sequence
                with pytest.raises(grpc.RpcError) as caught:
                    raw.send("Step", other)
                assert caught.value.code() == code
                assert "expected 3" in caught.value.details()
            assert raw.state() == before
            raw.apply("Step", *batch(2))
