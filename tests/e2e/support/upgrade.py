"""Model repositories and data directories of servers with other versions of PyTorch.

`tests/e2e/upgrades/state-VERSION.tar.xz` has a repository and the data directory of a Braid release
on that version of PyTorch. `packages-VERSION.tar.xz` has only a repository. To add one, run with
that version's Python environment, in the checkout of the release or in this one:

    PYTHONPATH=client/python:tests python -m e2e.support.upgrade state-VERSION.tar.xz
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

import braid
import numpy as np
import torch
from e2e.support.server import Server
from torch import Tensor, nn

ARCHIVES = Path(__file__).parents[1] / "upgrades"
ROWS = 6
# Steps before the checkpoint, between it and the publication, and from there to the stop.
STEPS = (3, 2, 1)


class ConvNet(nn.Module):
    """Takes images of 8×8 in 3 channels, has batch norm and 4 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.GELU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Transformer(nn.Module):
    """Takes 6 words of a vocabulary of 20, has 4 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids)).mean(1))


class Recurrent(nn.Module):
    """An LSTM over 5 steps of 3 numbers, with 4 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(3, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0][:, -1])


class Mlp(nn.Module):
    """Takes 10 numbers, has 4 classes; scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


# Trained models: module, format and optimizer.
TRAINED = {
    "convnet": (ConvNet, "pair", {"name": "AdamW", "lr": 0.01}),
    "transformer": (Transformer, "pair", {"name": "SGD", "lr": 0.05, "momentum": 0.9}),
    "recurrent": (Recurrent, "pair", {"name": "Adam", "lr": 0.01}),
    "mlp": (Mlp, "torchscript", {"name": "RMSprop", "lr": 0.01}),
}
# Name of the convnet in the format of torch.export.save.
PROGRAM = "program"


def batch(model: str, number: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns fixed inputs and class indices for `model`, ROWS rows."""
    generator = np.random.default_rng(number)
    if model == "transformer":
        inputs = {"ids": generator.integers(0, 20, (ROWS, 6))}
    else:
        row = {"recurrent": (5, 3), "mlp": (10,)}.get(model, (3, 8, 8))
        inputs = {"x": generator.standard_normal((ROWS, *row)).astype(np.float32)}
    return inputs, generator.integers(0, 4, ROWS)


def write_repository(directory: Path) -> None:
    for model, (module_class, format, _) in TRAINED.items():
        torch.manual_seed(0)
        inputs = {name: torch.from_numpy(value) for name, value in batch(model, 0)[0].items()}
        braid.export(module_class(), inputs, directory / model, format=format)
    torch.manual_seed(0)
    folder = directory / PROGRAM / "1"
    folder.mkdir(parents=True)
    rows = torch.export.Dim("rows", min=1, max=1024)
    example = torch.from_numpy(batch(PROGRAM, 0)[0]["x"])
    torch.export.save(
        torch.export.export(ConvNet().eval(), (example,), dynamic_shapes=({0: rows},)),
        folder / "model.pt2",
    )


def train(server: Server) -> None:
    """Trains, saves a checkpoint, publishes and continues, by STEPS."""
    with braid.connect(server.address) as client:
        for model, (_, _, optimizer) in TRAINED.items():
            trainer = client.create_trainer(
                model, name=model, loss="cross_entropy", optimizer=optimizer, checkpoint_every=100
            )
            numbers = iter(range(sum(STEPS)))
            for steps, then in zip(STEPS, (trainer.save_checkpoint, trainer.publish, None)):
                for _ in range(steps):
                    inputs, target = batch(model, next(numbers))
                    trainer.step(inputs, {"target": target})
                if then is not None:
                    then()


def main() -> None:
    archive_path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_repository(directory / "models")
        if archive_path.name.startswith("state-"):
            with Server(directory / "models", "cpu*2", directory, ("--cpu_threads=1",)) as server:
                train(server)
        with tarfile.open(archive_path, "w:xz") as archive:
            for part in ("models", "data"):
                if (directory / part).exists():
                    archive.add(directory / part, part)


if __name__ == "__main__":
    main()
