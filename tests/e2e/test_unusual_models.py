"""Models that keep or return what they are given, that return one number, or that take an input whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, programs, training
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from torch import Tensor, nn

SGD = {"name": "SGD", "lr": 0.1}
SCALE = np.array([1, 2, 3, 4], dtype=np.float32)


class Echo(nn.Module):
    """Returns its input next to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


class Hoarder(nn.Module):
    """Replaces a buffer by its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("last", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return self.layer(x)


class Counter(nn.Module):
    """Counts its calls in a buffer, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x)


class Summed(nn.Module):
    """Returns one number per chunk next to its rows."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sum()


class Squeezed(nn.Module):
    """Squeezes sizes of one, including the batch dimension of a single row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()


class Scaled(nn.Module):
    """Multiplies its rows by a vector that every replica receives whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.layer(x * scale)


def config(outputs: str, inputs: str = "", parameters: str = "") -> str:
    return f"""max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} {inputs} ]
output [ {outputs} ]
{parameters}"""


Y = '{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] }'
MODELS = {
    "echo": (Echo, config(Y + ', { name: "x_again" data_type: TYPE_FP32 dims: [ 4 ] }')),
    "hoarder": (Hoarder, config(Y)),
    "counter": (Counter, config(Y)),
    "summed": (
        Summed,
        config(
            '{ name: "twice" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "sum" data_type: TYPE_FP32 }'
        ),
    ),
    "squeezed": (
        Squeezed,
        config('{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }'),
    ),
    "scaled": (
        Scaled,
        config(
            Y,
            ', { name: "scale" data_type: TYPE_FP32 dims: [ 4 ] }',
            'parameters { key: "broadcast" value { string_value: "scale" } }',
        ),
    ),
}


# The others are rejected.
HELD = {
    "torchscript": tuple(MODELS),
    "pair": ("echo", "counter", "summed"),
    "exported": ("echo", "summed", "scaled"),
    "aot": ("echo", "summed", "scaled"),
}
trained = pytest.mark.not_in("exported", "aot", model="any", reason="they cannot be trained")


def write(directory: Path, name: str, module: nn.Module, format: str) -> None:
    config = MODELS[name][1]
    x = torch.ones(2, 4)
    if format == "torchscript":
        models.export(directory, module, config=config)
    elif format == "pair":
        models.export_pair(directory, module, {"x": x}, config)
    else:
        example, sizes = [x], programs.any_batch([x])
        if name == "scaled":
            example, sizes = [x, torch.ones(4)], [*sizes, {}]
        save = programs.save if format == "exported" else programs.compile_from_one
        save(directory / "1/model.pt2", module, example, sizes)
        (directory / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def modules() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    return {name: make() for name, (make, _) in MODELS.items()}


@pytest.fixture(scope="module")
def client(
    modules: dict[str, nn.Module], served_format: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[braid.Client]:
    directory: Path = tmp_path_factory.mktemp("unusual")
    for name in HELD[served_format]:
        write(directory / "models" / name, name, modules[name], served_format)
    flags = ("--cpu_threads=1",)
    with Server(directory / "models", "cpu*2", directory / "run", flags) as server:
        with braid.connect(server.address) as connected:
            yield connected


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 4), dtype=np.float32)


def target(n: int) -> np.ndarray:
    return np.zeros(n, dtype=np.int64)


@pytest.mark.parametrize("n", [1, 2, 50, 333])
def test_output_may_be_the_input(
    client: braid.Client, modules: dict[str, nn.Module], n: int
) -> None:
    inputs = [np.roll(rows(n), shift, axis=1) for shift in range(4)]
    replies = [client.infer("echo", {"x": x}) for x in inputs]
    for x, outputs in zip(inputs, replies):
        np.testing.assert_array_equal(outputs["x_again"], x)
        assert_close(outputs["y"], expected(modules["echo"], x)[0])


@pytest.mark.not_in("pair", "exported", "aot", model="squeezed", reason="they are of one rank")
@pytest.mark.parametrize("n", [1, 2, 65, 333])
def test_squeezed_single_row_keeps_its_batch_dimension(
    client: braid.Client, modules: dict[str, nn.Module], n: int
) -> None:
    (y,) = client.infer("squeezed", {"x": rows(n)}).values()
    assert y.shape == (n, 1)
    assert_close(y, expected(modules["squeezed"].layer, rows(n)))


@trained
def test_recorded_reply_equals_the_first(client: braid.Client) -> None:
    """A model's output may share memory with its input, which is freed with the request."""
    with training.new_trainer(client, "echo", loss="cross_entropy", optimizer=SGD) as trainer:
        start = trainer.info()
        first = trainer.forward({"x": rows(1)})
        for _ in range(20):
            client.infer("echo", {"x": rows(50)})
        trainer._handle.reset_to(start)  # Simulates a client whose reply was lost.
        replayed = trainer.forward({"x": rows(1)})
    assert replayed.replayed
    np.testing.assert_array_equal(first.outputs["x_again"], rows(1))
    np.testing.assert_array_equal(replayed.outputs["x_again"], rows(1))


@trained
@pytest.mark.not_in("pair", model="hoarder", reason="its buffer takes the batch's shape")
def test_replaced_buffer_belongs_to_the_trainer(client: braid.Client) -> None:
    with training.new_trainer(client, "hoarder", loss="cross_entropy", optimizer=SGD) as trainer:
        trainer.step({"x": rows(1)}, {"target": target(1)})
        for _ in range(20):
            client.infer("hoarder", {"x": rows(50)})
        np.testing.assert_array_equal(trainer.state_dict()["last"], rows(1))
        with pytest.raises(braid.FailedPrecondition, match="buffer of shape"):
            trainer.step({"x": rows(5)}, {"target": target(5)})
        np.testing.assert_array_equal(trainer.state_dict()["last"], rows(1))
        assert trainer.info().step == 1


@trained
def test_evaluation_does_not_change_buffers(client: braid.Client) -> None:
    with training.new_trainer(client, "counter", loss="cross_entropy", optimizer=SGD) as trainer:
        trainer.step({"x": rows(6)}, {"target": target(6)})
        trainer.forward({"x": rows(6)}, mode="eval")
        assert trainer.state_dict()["calls"] == 1


def test_scalar_per_chunk_becomes_a_vector(client: braid.Client) -> None:
    x = rows(40)
    outputs = client.infer("summed", {"x": x})
    np.testing.assert_array_equal(outputs["twice"], x * 2)
    assert 1 <= len(outputs["sum"]) <= 5
    np.testing.assert_allclose(outputs["sum"].sum(), x.sum(), rtol=1e-4, atol=1e-4)


NO_BATCH = "dim 0 of every input of a pair is the batch"


@pytest.mark.not_in("pair", model="scaled", reason=NO_BATCH)
@pytest.mark.parametrize("n", [1, 40, 333])
def test_broadcast_input_is_passed_whole_to_every_replica(
    client: braid.Client, modules: dict[str, nn.Module], n: int
) -> None:
    x = rows(n)
    served = client.infer("scaled", {"x": x, "scale": SCALE})["y"]
    assert_close(served, expected(modules["scaled"], x, SCALE))
    with pytest.raises(braid.InvalidArgument, match="scale"):
        client.infer("scaled", {"x": x, "scale": np.ones((n, 4), dtype=np.float32)})


@trained
@pytest.mark.not_in("pair", model="scaled", reason=NO_BATCH)
def test_broadcast_input_is_passed_whole_in_training(
    client: braid.Client, modules: dict[str, nn.Module]
) -> None:
    x = rows(40)
    with training.new_trainer(client, "scaled", loss="cross_entropy", optimizer=SGD) as trainer:
        forward = trainer.forward({"x": x, "scale": SCALE}, mode="eval", report_split=True)
    assert [chunk.rows for chunk in forward.chunks] == [20, 20]
    assert_close(forward.outputs["y"], expected(modules["scaled"], x, SCALE))


@trained
def test_ignored_class_needs_class_indices(client: braid.Client) -> None:
    loss = {"name": "cross_entropy", "ignore_index": 1}
    with training.new_trainer(client, "counter", loss=loss, optimizer=SGD) as trainer:
        probabilities = np.full((6, 2), 0.5, dtype=np.float32)
        with pytest.raises(braid.InvalidArgument, match="ignore_index 1") as error:
            trainer.step({"x": rows(6)}, {"target": probabilities})
    assert error.value.field == "targets[0].datatype"
