"""A transformer encoder layer with dropout: its random numbers follow from the trainer's seed, the
step and the chunk, so 50 steps equal PyTorch's with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import braid
import pytest
import torch
from e2e.support import long_training, models, oracle, training
from e2e.support.long_training import Batch
from e2e.support.oracle import Run
from torch import Tensor, nn
from torch.nn import functional

STEPS = 50
# Not divisible by 2, 3 or 4.
ROWS = 11
ADAM = {"name": "Adam", "lr": 1e-3}
SEED = 2**63 + 5

CONFIG = """
name: "encoder"
backend: "pytorch"
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP64 dims: [ -1, 16 ] } ]
output [ { name: "logits" data_type: TYPE_FP64 dims: [ 3 ] } ]
"""


class Encoder(nn.Module):
    """Classifies sequences of 16 numbers each. Dropout in the attention and after each block."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)
        self.classifier = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.layer(x).mean(1))


def make() -> nn.Module:
    torch.manual_seed(3)
    return Encoder().double()


LENGTHS = (5, 9)


def batches() -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(4)
    made: list[Batch] = []
    for length in LENGTHS:
        x = torch.randn(ROWS, length, 16, generator=generator, dtype=torch.float64)
        made.append(({"x": x}, {"target": x[:, 0, :3].argmax(1)}))
    return long_training.cycle(made, STEPS)


@pytest.fixture(scope="module")
def client_of(
    tmp_path_factory: pytest.TempPathFactory, format: str
) -> Iterator[Callable[[int], braid.Client]]:
    directory: Path = tmp_path_factory.mktemp("encoder")
    if format == "pair":
        inputs, _ = next(batches())
        dynamic = {"x": {1: "length"}}
        models.export_pair(
            directory / "models" / "encoder", make(), inputs, CONFIG, dynamic=dynamic
        )
    else:
        models.export(directory / "models" / "encoder", make(), config=CONFIG)
    with long_training.clients_of(directory / "models", directory / "run") as get:
        yield get


def train(client: braid.Client, seed: int) -> Run:
    return long_training.on_server(
        client,
        "encoder",
        batches(),
        loss="cross_entropy",
        optimizer=ADAM,
        seed=seed,
    )


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_training_equals_pytorch_with_the_same_seeds(
    client_of: Callable[[int], braid.Client], replicas: int
) -> None:
    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        outputs = oracle.seeded_forward_in_chunks(module, batch[0], replicas, SEED, step)
        return functional.cross_entropy(outputs, batch[1]["target"])

    wanted = long_training.in_pytorch(make(), batches(), ADAM, loss)
    # Checks that training changed something; otherwise equality would prove little.
    assert wanted.losses[-1] < 0.85 * wanted.losses[0]
    oracle.assert_equal_runs(train(client_of(replicas), SEED), wanted, 1e-9)


def test_results_depend_on_the_seed(client_of: Callable[[int], braid.Client]) -> None:
    """Runs with one seed are equal bit for bit. Another seed differs from the first step on."""
    client = client_of(2)
    first, again, other = (train(client, seed) for seed in (SEED, SEED, SEED + 1))
    assert first.losses == again.losses
    for name, value in first.state.items():
        assert value.tobytes() == again.state[name].tobytes(), name
    assert first.losses[0] != other.losses[0]


def test_evaluation_disables_dropout(client_of: Callable[[int], braid.Client]) -> None:
    inputs, targets = next(batches())
    with torch.no_grad():
        logits = make().eval()(inputs["x"])
    with training.new_trainer(
        client_of(3), "encoder", loss="cross_entropy", optimizer=ADAM
    ) as trainer:
        result = trainer.forward(inputs, targets, mode="eval")
    torch.testing.assert_close(
        torch.from_numpy(result.outputs["logits"]), logits, rtol=0, atol=1e-12
    )
    wanted = functional.cross_entropy(logits, targets["target"]).item()
    assert result.loss == pytest.approx(wanted, abs=1e-12)
