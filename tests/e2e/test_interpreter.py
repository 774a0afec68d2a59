"""Compares the server with PyTorch, forward and backward, on unusual exported graphs: permuted
tensors, complex and boolean tensors, and numbers computed from the number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports
from e2e.support.inference import assert_close
from e2e.support.server import Server
from torch import Tensor, nn
from torch.nn import functional

ROWS = 6
WIDTH = 4


class Halves(nn.Module):
    """Multiplies a part of each row by numbers, and uses a row of equal numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(WIDTH, 2 * WIDTH)
        self.decode = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.encode(x).chunk(2, 1)
        spread = spread + 0.25 * spread[:, :1].expand(-1, WIDTH)
        return self.decode(mean + torch.exp(0.5 * spread))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(x).reshape(-1, 2, 3, 2).permute(2, 0, 1, 3).unbind(0)
        weights = ((query * 0.5) @ key.transpose(1, 2)).softmax(-1)
        return (weights @ value).flatten(1)


class Sums(nn.Module):
    """The gradient is an expanded number times a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * 0.5).sum(1, keepdim=True)


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("angles", torch.tensor([0.5, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.linear(x).unflatten(1, (WIDTH // 2, 2)))
        turned = pairs * torch.polar(torch.ones_like(self.angles), self.angles)
        return torch.view_as_real(turned).flatten(1)


class Correlation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.linear(x)) * torch.fft.rfft(x).conj()
        return torch.fft.irfft(spectrum, n=WIDTH)


class Booleans(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + (x > 0) * 2.5


class Numbers(nn.Module):
    """Applies operators to tensors and Python numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * (x // 0.5) + torch.mul(2, torch.arange(WIDTH) // 2)
        turned = torch.view_as_real(torch.view_as_complex(y.unflatten(1, (2, 2))) * 1j).flatten(1)
        return torch.div(2, 1 + turned.abs()) + (y * (1 + 2j)).abs() + (1j / (y + 3j)).real


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(2, WIDTH, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        _, (state, cell) = self.layer(x.unflatten(1, (2, 2)))
        return state[-1] + cell.mean(0)


class Padded(nn.Module):
    """Divides negative row counts, with results that do not depend on the row count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        y = self.linear(x) * (1 - (-rows // 2) - (rows + 1) // 2)
        y = functional.pad(y, (0, 0, 0, (-rows) % 8)).view(-1, 8, WIDTH).tanh()
        return y.view(-1, WIDTH)[:rows]


class Branches(nn.Module):
    """One output for each function of a linear layer's output, and their sum in `total`."""

    def __init__(self, functions: dict[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.functions = functions

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.linear(x)
        outputs = {name: function(y) for name, function in self.functions.items()}
        return outputs | {"total": sum(each.tanh() for each in outputs.values())}


class Permuted(nn.Module):
    """One output for each layer, given a transposed tensor, and their sum in `total`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH // 2, 6)
        self.layers = nn.ModuleDict(
            {
                "batch_norm": nn.BatchNorm1d(6),
                "batch_norm_of_batch": nn.BatchNorm1d(6, affine=False, track_running_stats=False),
                "convolution": nn.Conv1d(6, 6, 3, padding=1),
                "gelu": nn.GELU(),
                "group_norm": nn.GroupNorm(2, 6),
                "instance_norm": nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
                "layer_norm": nn.LayerNorm(2),
                "log_sigmoid": nn.LogSigmoid(),
                "log_softmax": nn.LogSoftmax(1),
                "max_pooling": nn.MaxPool1d(3, 1, 1),
                "prelu": nn.PReLU(6),
                "softmax": nn.Softmax(1),
            }
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.linear(x.unflatten(1, (2, WIDTH // 2))).transpose(1, 2)
        outputs = {
            name: layer(y).transpose(1, 2).flatten(1) for name, layer in self.layers.items()
        }
        return outputs | {"total": sum(each.tanh() for each in outputs.values())}


# `y.shape[0]` is the number of rows.
ROW_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "as_decimals": lambda y: y * torch.sym_float(y.shape[0]),
    "bits": lambda y: y * ((y.shape[0] & 5) + (y.shape[0] | 2) + (y.shape[0] << 2 >> 1)),
    "by_half": lambda y: y * y / (y.shape[0] / 2),
    "by_negative": lambda y: y * (y.shape[0] // -4 + y.shape[0] % -4),
    "either": lambda y: y * torch.sym_ite(y.shape[0] > 3, 2, 3),
    "factor": lambda y: torch.sub(y, y * y, alpha=1 / y.shape[0]),
    "most": lambda y: y * torch.sym_max(torch.sym_min(y.shape[0], 5), 2),
    "most_decimals": lambda y: y * torch.sym_max(y.shape[0] / 3, 1.0),
    "negative": lambda y: y * ((2 - y.shape[0]) // 3 + (5 - y.shape[0]) % 3),
    "negative_power": lambda y: y * y.shape[0] ** -1,
    "of_any_sign": lambda y: y * (100 // (2 * y.shape[0] - 5) + 100 % (5 - 2 * y.shape[0])),
    "power": lambda y: y * y.shape[0] ** 0.5,
    "quotient": lambda y: y * (y.detach() // y.shape[0]),
    "quotient_of_rows": lambda y: y * (y.shape[0] // (1.5 + y.detach().abs())),
    "remainder": lambda y: y * ((y.shape[0] / 4) % 1),
    "root": lambda y: y * torch.sym_sqrt(y.shape[0]),
    "rounded_up": lambda y: y * (-(-y.shape[0] // 2)),
    "share": lambda y: y * (1 - 1 / (y.shape[0] + 1)),
    "to_a_multiple": lambda y: y * ((-y.shape[0]) % 4 + 1),
    "whole": lambda y: y * torch.sym_int(y.shape[0] / 3),
}
NUMBER_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "boolean": lambda y: torch.mul(True, y) * torch.mul(y > 0, True),
    "complex_constant": lambda y: (torch.full((4,), 1j) * y).abs(),
    "complex_difference": lambda y: (1j - y).abs(),
    "complex_power": lambda y: (y.exp() ** 1j).real,
    "complex_product": lambda y: (y * (1 + 2j)).abs() + (1j / (y + 3j)).real,
    "dividend": lambda y: y + torch.div(7, y.detach(), rounding_mode="floor"),
    "divisor": lambda y: y * (y.detach() // 3),
    "factor": lambda y: torch.mul(0.1, y) + torch.sub(2, y, alpha=3),
    "integers": lambda y: y * (torch.arange(4) // 2) + y * (torch.arange(4) // 1.5),
    "inverse": lambda y: torch.linalg.inv(y[:, :, None] * y[:, None] + torch.eye(WIDTH)).sum(1),
    "mean": lambda y: y - torch.mean(y * y, dim=1, keepdim=True),
    "norm": lambda y: y / torch.linalg.norm(y, dim=1, keepdim=True),
    "small_integers": lambda y: y * (torch.full((4,), 7, dtype=torch.uint8) // 3),
}


class Norms(nn.Module):
    """Norms, sums and means of a whole weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        scale = torch.linalg.norm(weight) + torch.linalg.norm(weight, "fro")
        scale = scale + torch.linalg.norm(weight, 1) + torch.linalg.norm(weight[None])
        scale = scale + torch.sum(weight, dim=None).abs() + torch.mean(weight, dim=None).abs()
        return self.linear(x) / scale


MODELS = {
    "halves": Halves,
    "attention": Attention,
    "sums": Sums,
    "rotary": Rotary,
    "correlation": Correlation,
    "booleans": Booleans,
    "norms": Norms,
    "numbers": Numbers,
}
# torch.export fixes the number of rows of these.
PAIRS = MODELS | {"padded": Padded, "recurrent": Recurrent}
FORMATS = [(name, "pair") for name in PAIRS] + [(name, "saved") for name in MODELS]
# Outputs depend on the number of rows in a batch, so one replica runs each request whole.
WHOLE = {
    "row_functions": lambda: Branches(ROW_FUNCTIONS),
    "number_functions": lambda: Branches(NUMBER_FUNCTIONS),
    "permuted": Permuted,
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return (PAIRS | WHOLE)[name]()


def save(module: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True)
    shapes = ({0: torch.export.Dim("rows", min=2, max=1 << 20)},)
    example = (torch.randn(ROWS, WIDTH),)
    torch.export.save(torch.export.export(module.eval(), example, dynamic_shapes=shapes), path)


@contextmanager
def serving(directory: Path, pairs: Iterable[str], devices: str) -> Iterator[braid.Client]:
    """Exports `pairs` next to the models in the repository, and serves all of them."""
    for name in pairs:
        example = (torch.randn(ROWS, WIDTH),)
        exports.export(make(name), example, directory / "models" / name, "pair", precisions=())
    with Server(directory / "models", devices, directory / "server") as server:
        with braid.connect(server.address) as client:
            yield client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("interpreter")
    for name in MODELS:
        save(make(name), directory / "models" / f"{name}_saved/1/model.pt2")
    with serving(directory, PAIRS, "cpu*2") as client:
        yield client


@pytest.fixture(scope="module")
def one_replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    with serving(tmp_path_factory.mktemp("whole"), WHOLE, "cpu") as client:
        yield client


def batch(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, WIDTH, generator=generator),
        torch.randn(rows, WIDTH, generator=generator),
    )


@pytest.mark.parametrize("rows", [2, 7, 64])
@pytest.mark.parametrize("name, format", FORMATS)
def test_inference_equals_pytorch(client: braid.Client, name: str, format: str, rows: int) -> None:
    x, _ = batch(rows)
    with torch.no_grad():
        wanted = make(name)(x)
    model = name if format == "pair" else f"{name}_saved"
    (output,) = client.infer(model, {"x": x.numpy()}).values()
    assert_close(output, wanted)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_batches_equal_pytorch(one_replica: braid.Client, name: str, rows: int) -> None:
    x, _ = batch(rows)
    with torch.no_grad():
        wanted = make(name).eval()(x)
    outputs = one_replica.infer(name, {"x": x.numpy()})
    assert outputs.keys() == wanted.keys()
    for output, value in wanted.items():
        np.testing.assert_allclose(outputs[output], value, rtol=1e-4, atol=1e-5, err_msg=output)


@pytest.mark.parametrize("name", PAIRS)
def test_training_equals_pytorch(client: braid.Client, name: str) -> None:
    train(client, name, lambda outputs: outputs, loss="mse")


@pytest.mark.parametrize("name", WHOLE)
def test_whole_batch_training_equals_pytorch(one_replica: braid.Client, name: str) -> None:
    loss = {"name": "mse", "output": "total"}
    train(one_replica, name, lambda outputs: outputs["total"], loss=loss)


def train(
    client: braid.Client, name: str, output_of: Callable[..., Tensor], loss: str | dict
) -> None:
    """Compares losses and final state with PyTorch's."""
    module = make(name).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = client.create_trainer(name, loss=loss, optimizer={"name": "SGD", "lr": 0.1})
    for rows in (7, 64, 33):
        x, target = batch(rows)
        output = output_of(module(x))
        target = target.repeat(1, math.ceil(output.shape[1] / WIDTH))[:, : output.shape[1]]
        wanted = functional.mse_loss(output, target)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        got = trainer.step({"x": x.numpy()}, {"target": np.ascontiguousarray(target.numpy())})
        assert got.loss == pytest.approx(wanted.item(), rel=1e-5)
    state = trainer.state_dict()
    for key, value in module.state_dict().items():
        assert_close(state[key], value, rtol=1e-4, atol=1e-5)
    trainer.delete()
