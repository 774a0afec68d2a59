"""Exported graphs whose tensors are not laid out row by row, or not plain numbers, or that compute
with the number of rows: what the interpreter computes is what PyTorch computes, forward and
backward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
import torch
from e2e.inference import assert_close
from e2e.server import Server
from torch import Tensor, nn
from torch.nn import functional

ROWS = 6
WIDTH = 4


class Halves(nn.Module):
    """Numbers times a part of each row, and of a row of which each number is the same."""

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
    """Its gradient is an expanded number times a number."""

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
    """Operators on tensors that are given Python's numbers."""

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
    """Divides negative numbers of rows, with results that are the same for any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        y = self.linear(x) * (1 - (-rows // 2) - (rows + 1) // 2)
        y = functional.pad(y, (0, 0, 0, (-rows) % 8)).view(-1, 8, WIDTH).tanh()
        return y.view(-1, WIDTH)[:rows]


MODELS = {
    "halves": Halves,
    "attention": Attention,
    "sums": Sums,
    "rotary": Rotary,
    "correlation": Correlation,
    "booleans": Booleans,
}
# What torch.export makes of most of them the interpreter does not run.
PAIRS = MODELS | {"numbers": Numbers, "padded": Padded, "recurrent": Recurrent}
FORMATS = [(name, "pair") for name in PAIRS] + [(name, "saved") for name in MODELS]


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return PAIRS[name]()


def save(module: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True)
    shapes = ({0: torch.export.Dim("rows", min=2, max=1 << 20)},)
    example = (torch.randn(ROWS, WIDTH),)
    torch.export.save(torch.export.export(module.eval(), example, dynamic_shapes=shapes), path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("interpreter")
    for name in PAIRS:
        example = (torch.randn(ROWS, WIDTH),)
        braid.export(make(name), example, directory / "models" / name, "pair", precisions=())
    for name in MODELS:
        save(make(name), directory / "models" / f"{name}_saved/1/model.pt2")
    with Server(directory / "models", "cpu*2", directory / "server") as server:
        with braid.connect(server.address) as client:
            yield client


def batch(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, WIDTH, generator=generator),
        torch.randn(rows, WIDTH, generator=generator),
    )


@pytest.mark.parametrize("rows", [2, 7, 64])
@pytest.mark.parametrize("name, format", FORMATS)
def test_inference(client: braid.Client, name: str, format: str, rows: int) -> None:
    x, _ = batch(rows)
    with torch.no_grad():
        wanted = make(name)(x)
    model = name if format == "pair" else f"{name}_saved"
    (output,) = client.infer(model, {"x": x.numpy()}).values()
    assert_close(output, wanted)


@pytest.mark.parametrize("name", PAIRS)
def test_training(client: braid.Client, name: str) -> None:
    module = make(name)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = client.create_trainer(name, loss="mse", optimizer={"name": "SGD", "lr": 0.1})
    for rows in (7, 64, 33):
        x, target = batch(rows)
        output = module(x)
        target = target[:, : output.shape[1]]
        loss = functional.mse_loss(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        got = trainer.step({"x": x.numpy()}, {"target": np.ascontiguousarray(target.numpy())})
        assert got.loss == pytest.approx(loss.item(), rel=1e-5)
    state = trainer.state_dict()
    for key, value in module.state_dict().items():
        assert_close(state[key], value)
    trainer.delete()
