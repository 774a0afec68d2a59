"""LibTorch's lazy negations, conjugations and zeros have the right values when they are sent, used in
a layer and trained with."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import models, programs
from e2e.support.inference import assert_close, expected
from e2e.support.server import Server
from e2e.support.training import new_trainer, on
from torch import Tensor, nn

WIDTH = 512
OUTPUTS = {
    "conjugated": 1,
    "negated": WIDTH,
    "of_input": WIDTH // 2,
    "input": WIDTH,
    "few": 3,
    "wide": WIDTH + 256,
}
CONFIG = f"""
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [
{",".join(f'{{ name: "{n}" data_type: TYPE_FP32 dims: [ {w} ] }}' for n, w in OUTPUTS.items())}
]
"""


class Lazy(nn.Module):
    """Returns tensors with the negative bit, whole or in part, in the input's and in other memory."""

    def __init__(self) -> None:
        super().__init__()
        self.few = nn.Linear(WIDTH, 3)
        self.wide = nn.Linear(WIDTH, WIDTH + 256)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        negated = torch._neg_view(x * 2)
        return {
            "conjugated": torch.fft.rfft(x).conj().imag[:, 1:2],
            "negated": negated,
            "of_input": torch.view_as_complex(x.unflatten(1, [-1, 2])).conj().imag,
            "input": torch._neg_view(x),
            "few": self.few(negated),
            "wide": self.wide(negated),
        }


class Zeros(nn.Module):
    """Returns zeros without memory."""

    def forward(self, x: Tensor) -> Tensor:
        return torch._efficientzerotensor([x.size(0), 3])


class NegatedState(nn.Module):
    """Has a buffer with the negative bit, also in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch._neg_view(torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.shift.expand(x.size(0), 3)


class Turned(nn.Module):
    """The gradient of `imaginary` has the negative bit."""

    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
        self.imaginary = nn.Parameter(torch.tensor([0.7], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.complex(self.real, self.imaginary).conj()
        return x * torch.view_as_real(z * z * z)[:, 1]


def make() -> Lazy:
    torch.manual_seed(3)
    return Lazy()


def simple_config(datatype: str) -> str:
    return f"""
max_batch_size: 64
input [ {{ name: "x" data_type: TYPE_{datatype} dims: [ 3 ] }} ]
output [ {{ name: "y" data_type: TYPE_{datatype} dims: [ 3 ] }} ]
"""


def write(directory: Path, format: str) -> None:
    example = torch.zeros(3, WIDTH)
    if format == "torchscript":
        models.export(directory / "lazy", make(), config=CONFIG)
        models.export(directory / "zeros", Zeros(), config=simple_config("FP32"))
        models.export(directory / "state", NegatedState(), config=simple_config("FP32"))
        models.export(directory / "turned", Turned(), config=simple_config("FP64"))
    elif format == "pair":
        models.export_pair(directory / "lazy", make(), {"x": example})
        models.export_pair(directory / "turned", Turned(), {"x": torch.zeros(3, 3).double()})
    else:
        write = programs.save if format == "exported" else programs.compile
        sizes = programs.any_batch([example])
        write(directory / "lazy/1/model.pt2", make(), [example], sizes)
        (directory / "lazy/config.pbtxt").write_text(CONFIG)


@pytest.fixture(scope="module")
def client_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], braid.Client]]:
    """client_of(format): a client of one server for the models in that format."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def get(format: str) -> braid.Client:
            directory = tmp_path_factory.mktemp(f"lazy-{format}")
            write(directory / "models", format)
            server = Server(directory / "models", "cpu*2", directory / "run", data=False)
            stack.enter_context(server)
            return stack.enter_context(braid.connect(server.address))

        yield get


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("format", models.FORMATS)
def test_signs_of_outputs_equal_pytorch(
    client_of: Callable[[str], braid.Client], format: str, rows: int
) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
    outputs = client_of(format).infer("lazy", {"x": x})
    for name, wanted in expected(make(), x).items():
        assert_close(outputs[name], wanted.resolve_neg(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("model", "value"), [("zeros", 0), ("state", -1)])
@pytest.mark.parametrize("rows", [1, 3])
def test_lazy_zeros_and_negated_buffers_are_sent(
    client_of: Callable[[str], braid.Client], model: str, value: float, rows: int
) -> None:
    (served,) = client_of("torchscript").infer(model, {"x": np.ones((rows, 3), np.float32)}).values()
    assert served.tolist() == [[value] * 3] * rows


def test_negated_client_input_is_sent_with_its_values(
    client_of: Callable[[str], braid.Client],
) -> None:
    x = torch._neg_view(torch.rand(2, WIDTH))
    (served,) = client_of("torchscript").infer("lazy", {"x": x}, outputs=["input"]).values()
    assert_close(served, (-x).resolve_neg())


@pytest.mark.parametrize("sync", ["reduce_broadcast", "all_reduce"])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("format", ["torchscript", "pair"])
def test_training_with_negated_gradients_equals_pytorch(
    client_of: Callable[[str], braid.Client], format: str, replicas: int, sync: str
) -> None:
    module = Turned()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = torch.rand(6, 3).double(), torch.rand(6, 3).double()
    with new_trainer(
        client_of(format),
        "turned",
        loss="mse",
        optimizer={"name": "SGD", "lr": 0.1},
        stages=on(replicas),
        sync=sync,
    ) as trainer:
        for _ in range(3):
            loss = nn.functional.mse_loss(module(x), y)
            sgd.zero_grad()
            loss.backward()
            assert module.imaginary.grad.is_neg()
            sgd.step()
            assert trainer.step({"x": x}, {"target": y}).loss == pytest.approx(loss.item(), rel=1e-12)
        state = trainer.state_dict()
        for name, value in module.state_dict().items():
            np.testing.assert_allclose(state[name], value, rtol=1e-12)
