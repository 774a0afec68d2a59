"""Compares recurrent layers of exported pairs with PyTorch, in inference and in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import braid
import numpy as np
import pytest
import torch
from e2e.support import exports, oracle
from e2e.support.server import Server
from e2e.support.training import new_trainer, on
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

STEPS = 6
WORDS = 20
FEATURES = 3
UNITS = 5
SEED = 11


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, FEATURES)
        self.layer = nn.LSTM(FEATURES, UNITS, batch_first=True)
        self.classify = nn.Linear(UNITS, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.classify(self.layer(self.embedding(ids))[0][:, -1])


class Tagger(nn.Module):
    """Two layers of two directions each, over time first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(FEATURES, UNITS, 2, bidirectional=True, dropout=0.5)
        self.tag = nn.Linear(2 * UNITS, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.tag(self.layers(x.transpose(0, 1))[0]).transpose(0, 1)


class FromStates(nn.Module):
    """Simple layers that begin at a given state, and an LSTM that begins where they end."""

    def __init__(self) -> None:
        super().__init__()
        self.tanh = nn.RNN(FEATURES, UNITS, batch_first=True)
        self.relu = nn.RNN(UNITS, UNITS, nonlinearity="relu", batch_first=True, bias=False)
        self.lstm = nn.LSTM(UNITS, UNITS, 2, batch_first=True)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        output, state = self.tanh(x, state.unsqueeze(0))
        output, last = self.relu(output, state)
        states = torch.cat([state, last])
        _, (hidden, cell) = self.lstm(output, (states, states * 0.5))
        return hidden[-1] + cell.mean(0)


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(FEATURES, UNITS, bidirectional=True, proj_size=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Packed(nn.Module):
    """Sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, UNITS, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(2 * UNITS, UNITS, 2, batch_first=True, dropout=0.5)
        self.rnn = nn.RNN(UNITS, UNITS, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed, (_, cell) = self.lstm(packed)
        packed, last = self.gru(packed)
        packed, ends = self.rnn(packed)
        steps, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        return steps.sum(1)[:, :UNITS] + last[-1] + cell.mean(0) + ends.mean(0)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]


def sequences(rows: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, STEPS, FEATURES)}


def with_states(rows: int) -> dict[str, Tensor]:
    return sequences(rows) | {"state": torch.randn(rows, UNITS)}


def with_lengths(rows: int) -> dict[str, Tensor]:
    return sequences(rows) | {"lengths": torch.randint(1, STEPS + 1, (rows,))}


def words(rows: int) -> dict[str, Tensor]:
    return {"ids": torch.randint(WORDS, (rows, STEPS))}


CASES = {
    "classifier": Case(Classifier, words),
    "tagger": Case(Tagger, sequences),
    "from_states": Case(FromStates, with_states),
    "projected": Case(Projected, sequences),
    "packed": Case(Packed, with_lengths),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TOLERANCE = {"float32": 2e-6, "float64": 1e-13}
MODELS = [("classifier", "float32"), *((name, "float64") for name in CASES)]


def make(name: str, dtype: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[name].make().to(DTYPES[dtype])


def inputs_of(name: str, dtype: str, rows: int) -> dict[str, Tensor]:
    torch.manual_seed(rows)
    inputs = CASES[name].inputs(rows)
    return {
        key: each.to(DTYPES[dtype]) if each.is_floating_point() else each
        for key, each in inputs.items()
    }


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[braid.Client]:
    directory = tmp_path_factory.mktemp("recurrent")
    for name, dtype in MODELS:
        path = directory / "models" / f"{name}_{dtype}"
        exports.export(make(name, dtype), inputs_of(name, dtype, 3), path, "pair", precisions=())
    with Server(directory / "models", "cpu*3", directory / "server") as server:
        with braid.connect(server.address) as client:
            yield client


@pytest.mark.parametrize("name, dtype", MODELS)
def test_inference_equals_pytorch(client: braid.Client, name: str, dtype: str) -> None:
    module = make(name, dtype).eval()
    for rows in (1, 7, 64):
        inputs = inputs_of(name, dtype, rows)
        with torch.no_grad():
            wanted = module(**inputs)
        (output,) = client.infer(f"{name}_{dtype}", numpy(inputs)).values()
        np.testing.assert_allclose(output, wanted, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("name, dtype", MODELS)
def test_training_equals_pytorch(
    client: braid.Client, name: str, dtype: str, replicas: int
) -> None:
    """Dropout draws the same numbers, because both sides seed it for each chunk."""
    module = make(name, dtype).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    options = {
        "loss": "mse",
        "optimizer": {"name": "SGD", "lr": 0.1},
        "stages": on(replicas),
        "seed": SEED,
    }
    with new_trainer(client, f"{name}_{dtype}", **options) as trainer:
        for step, rows in enumerate((7, 30, 2), start=1):
            inputs = inputs_of(name, dtype, rows)
            output = oracle.seeded_forward_in_chunks(module, inputs, replicas, SEED, step)
            target = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
            wanted = functional.mse_loss(output, target)
            optimizer.zero_grad()
            wanted.backward()
            optimizer.step()
            got = trainer.step(numpy(inputs), {"target": target.numpy()})
            assert got.loss == pytest.approx(wanted.item(), rel=1e-5)
        state = trainer.state_dict()
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(
            state[key], value, rtol=0, atol=5 * TOLERANCE[dtype], err_msg=key
        )


def numpy(tensors: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: each.numpy() for name, each in tensors.items()}
