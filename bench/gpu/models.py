"""Models of bench/gpu: an MLP, ResNet-50 and BERT-base, and small ones of the same structure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

PRECISIONS = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
}


def mlp(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


class Bottleneck(nn.Module):
    """Three convolutions, the second with the stride, and a shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, input: Tensor) -> Tensor:
        return functional.relu(self.layers(input) + self.shortcut(input))


def resnet(width: int, depths: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-50 with width 64, depths (3, 4, 6, 3) and 1,000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = width
    for stage, depth in enumerate(depths):
        stage_width = width << stage
        for block in range(depth):
            layers.append(Bottleneck(inputs, stage_width, 2 if stage and not block else 1))
            inputs = 4 * stage_width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)
    )


class EncoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate = nn.Linear(hidden, 4 * hidden)
        self.output = nn.Linear(4 * hidden, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, states: Tensor) -> Tensor:
        rows, tokens, hidden = states.shape
        # [rows, tokens, 3 * hidden] to three tensors [rows, heads, tokens, hidden / heads].
        projected = self.query_key_value(states).view(rows, tokens, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        attended = self.attention_output(attended.transpose(1, 2).reshape(rows, tokens, hidden))
        states = self.attention_norm(states + self.dropout(attended))
        changed = self.output(functional.gelu(self.intermediate(states)))
        return self.output_norm(states + self.dropout(changed))


class Bert(nn.Module):
    """BERT's encoder and a classifier of the first token. Sentences have all `tokens` tokens, so
    there is no mask; attention probabilities have no dropout."""

    def __init__(self, words: int, tokens: int, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, hidden))
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.Sequential(*(EncoderLayer(hidden, heads) for _ in range(layers)))
        self.pooler = nn.Linear(hidden, hidden)
        self.classifier = nn.Linear(hidden, 2)

    def forward(self, input: Tensor) -> Tensor:
        states = self.dropout(self.norm(self.words(input) + self.positions))
        first = self.layers(states)[:, 0]
        return self.classifier(torch.tanh(self.pooler(first)))


class InPrecision(nn.Module):
    """Runs a module in `dtype` on the inputs of any floating type. Outputs are float32."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module.to(dtype)
        self.dtype = dtype

    def forward(self, input: Tensor) -> Tensor:
        if input.is_floating_point():
            input = input.to(self.dtype)
        return self.module(input).float()


@dataclass(frozen=True)
class Model:
    """A model with the shape of an input row. Rows of integers are words, less than `words`."""

    name: str
    make: Callable[[], nn.Module]
    row: tuple[int, ...]
    classes: int
    words: int | None = None

    def module(self) -> nn.Module:
        """Makes the module, with the same weights every time."""
        torch.manual_seed(0)
        return self.make()

    def rows(self, count: int, seed: int = 0) -> np.ndarray:
        random = np.random.default_rng(seed)
        if self.words is not None:
            return random.integers(self.words, size=(count, *self.row))
        return random.standard_normal((count, *self.row), dtype=np.float32)

    def targets(self, count: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(self.classes, size=count)


FULL = {
    "mlp": Model("mlp", partial(mlp, 512), (784,), 10),
    "resnet50": Model("resnet50", partial(resnet, 64, (3, 4, 6, 3), 1000), (3, 224, 224), 1000),
    "bert": Model("bert", partial(Bert, 30522, 128, 768, 12, 12), (128,), 2, words=30522),
}
SMALL = {
    "mlp": Model("mlp", partial(mlp, 64), (784,), 10),
    "resnet50": Model("resnet50", partial(resnet, 8, (1, 1), 10), (3, 32, 32), 10),
    "bert": Model("bert", partial(Bert, 1000, 16, 64, 4, 1), (16,), 2, words=1000),
}
