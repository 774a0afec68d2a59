"""Description of a public model: how to make it, its inputs, and its training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from e2e.support.reference import Batch
from torch import Generator, Tensor, nn

SGD = {"name": "SGD", "lr": 0.005, "momentum": 0.9, "weight_decay": 1e-3}
ADAMW = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.05}
CLASSES = 3
# For the largest difference of outputs, losses and state, relative to values above 1.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Data:
    """Draws random tensors. rows: the batch size."""

    rows: int
    generator: Generator

    def normal(self, *shape: int) -> Tensor:
        """Returns normally distributed numbers in float64."""
        shape = (self.rows, *shape)
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def indices(self, end: int, *shape: int, start: int = 0) -> Tensor:
        """Returns integers from `start` to `end` - 1."""
        return torch.randint(start, end, (self.rows, *shape), generator=self.generator)


@dataclass(frozen=True)
class Entry:
    """One public model, without pretrained weights and without dropout.

    source: library or tutorial. kind: what the model does.
    make: makes the module, after torch.manual_seed(0); it is converted to `dtype`.
    draw: draw(data, **sizes) returns inputs and targets by name.
    sizes: sizes for which batches are drawn, in turn. The example has the first ones.
    loss, loss_mode, optimizer: in the form of `Client.create_trainer`.
    dynamic: of `braid.export`.
    tolerance: largest difference from PyTorch. reason: why it is not TOLERANCE.
    alternative: what to do, if there is no pair.
    """

    name: str
    source: str
    kind: str
    make: Callable[[], nn.Module]
    draw: Callable[..., Batch]
    sizes: Sequence[Mapping[str, int]] = ({},)
    loss: Any = "cross_entropy"
    loss_mode: str = "central"
    dtype: torch.dtype = torch.float64
    optimizer: Mapping[str, Any] = field(default_factory=lambda: SGD)
    dynamic: Mapping[str, Mapping[int, Any]] | None = None
    tolerance: float = TOLERANCE
    reason: str = ""
    alternative: str = ""

    def module(self) -> nn.Module:
        """Returns the module with the same weights each time."""
        torch.manual_seed(0)
        module = self.make().to(self.dtype)
        for each in module.modules():
            if isinstance(each, nn.modules.dropout._DropoutNd):
                each.p = 0.0
            elif isinstance(each, nn.MultiheadAttention):
                each.dropout = 0.0
        return module

    def batch(self, number: int, rows: int) -> Batch:
        """Returns the inputs and targets of batch `number`."""
        generator = torch.Generator().manual_seed(1000 * rows + number)
        drawn = self.draw(Data(rows, generator), **self.sizes[number % len(self.sizes)])
        inputs, targets = ({name: self._cast(x) for name, x in each.items()} for each in drawn)
        return inputs, targets

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x


def image_classes(channels: int = 3, side: int = 16, argument: str = "x") -> Callable[..., Batch]:
    """Returns a function that draws images whose class is the brightest third of channel 0."""

    def draw(data: Data, **sizes: int) -> Batch:
        height, width = sizes.get("height", side), sizes.get("width", side)
        labels = data.indices(CLASSES)
        images = data.normal(channels, height, width)
        stripes = torch.arange(width) * CLASSES // width
        images += (stripes == labels[:, None])[:, None, None].double()
        return {argument: images}, {"target": labels}

    return draw
