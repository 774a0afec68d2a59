"""Modules that are difficult to export, with example inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Staged(nn.Module):
    """Features with batch norm and dropout, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)
        )
        self.classifier = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.2)
        )
        self.head = nn.Linear(4, 3)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.layers(image).mean([2, 3]))


class Recurrent(nn.Module):
    """Two layers with dropout in between, which PyTorch's own trace omits."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


class Mixed(nn.Module):
    """Integer and float inputs; nested outputs; tied, frozen and unused parameters; a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.score = nn.Linear(4, 9, bias=False)
        self.score.weight = self.words.weight
        self.scale = nn.Parameter(torch.full((4,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("same_mean", self.mean, persistent=False)

    def forward(self, words: Tensor, weights: Tensor, bias: Tensor | None = None) -> dict:
        self.calls += 1
        hidden = (self.words(words) * weights[..., None]).sum(1) * self.scale
        if self.training:
            self.mean.lerp_(hidden.detach().mean(0), 0.1)
        return {
            "scores": self.score(hidden + self.same_mean),
            "more": [hidden, words, (hidden.square().sum(), weights[:, 0])],
        }


class Reassigned(nn.Module):
    """Assigns a new tensor to a buffer, like many moving averages."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return x - self.average


class Views(nn.Module):
    """Outputs that share memory with inputs, parameters and each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x)
        return x, x[:, 1:], y, y, y.view(-1, 2, 2).transpose(1, 2), self.layer.bias.sum()


class Separate(nn.Module):
    """Two outputs with separate parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 2)
        self.right = nn.Linear(3, 2)
        self.both = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.both(x)
        return {"left": self.left(x), "right": self.right(x)}


class Sizes(nn.Module):
    """Uses the number of rows, and a multiple of it, in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if 3 * x.shape[0] < 2:
            raise ValueError("unreachable")
        tokens = self.layer(x).reshape(x.shape[0] * 3, 4)
        kept = tokens.expand(2, x.shape[0] * 3, 4).mean(0)
        position = torch.arange(x.shape[0]).to(x.dtype)
        mean = kept.reshape(x.shape[0], 3, 4).mean(1) * (1.0 / x.shape[0]) * x.shape[0] ** 0.5
        return mean.tanh() * torch.sym_sqrt(x.shape[0]) + position[:, None]


class Noisy(nn.Module):
    """Uses a random operator with an argument named like a Python keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y + torch.empty_like(x).uniform_() if self.training else y


def linear() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Linear(4, 2), {"input": torch.randn(5, 4)}


MODELS = {
    "linear": linear,
    "mlp": lambda: (Staged(), {"x": torch.randn(5, 6)}),
    "convolutional": lambda: (Convolutional(), {"image": torch.randn(3, 2, 5, 5)}),
    "attention": lambda: (
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True),
        {"src": torch.randn(3, 3, 4)},
    ),
    "recurrent": lambda: (Recurrent(), {"x": torch.randn(3, 2, 3)}),
    "mixed": lambda: (
        Mixed(),
        {"words": torch.randint(0, 9, (4, 3)), "weights": torch.rand(4, 3)},
    ),
    "reassigned": lambda: (Reassigned(), {"x": torch.randn(4, 3)}),
    "spectral": lambda: (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        {"input": torch.randn(4, 4)},
    ),
    "views": lambda: (Views(), {"x": torch.randn(4, 3)}),
    "separate": lambda: (Separate(), {"x": torch.randn(4, 3)}),
    "sizes": lambda: (Sizes(), {"x": torch.randn(4, 3, 4)}),
    "noisy": lambda: (Noisy(), {"x": torch.randn(4, 3)}),
    "sparse": lambda: (
        nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2)),
        {"input": torch.randint(0, 7, (4, 2))},
    ),
    "double": lambda: (nn.Linear(3, 2).double(), {"input": torch.randn(4, 3).double()}),
    "bfloat16": lambda: (nn.Linear(3, 2).bfloat16(), {"input": torch.randn(4, 3).bfloat16()}),
}


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(3)
    return MODELS[name]()
