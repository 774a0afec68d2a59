"""Models of torchvision and transformers as exported pairs: how to make and train each, in PyTorch
and on a server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import braid
import torch
import torchvision
from e2e.support import long_training, models, third_party_models
from e2e.support.long_training import Batch
from e2e.support.oracle import Run
from e2e.support.third_party_models import CLASSES
from torch import Tensor, nn
from torch.nn import functional

# Not divisible by 2, 3 or 4.
ROWS = 11
SGD = {"name": "SGD", "lr": 0.005, "momentum": 0.9, "weight_decay": 1e-3}
ADAMW = {"name": "AdamW", "lr": 1e-3, "weight_decay": 0.05}
SIDE = 16


@dataclass(frozen=True)
class Recipe:
    """make: takes the dropout probability. batches: takes count and rows."""

    make: Callable[[float], nn.Module]
    batches: Callable[[int, int], list[Batch]]
    optimizer: dict[str, Any]
    has_batch_norm: bool = False
    has_dropout: bool = True


def _resnet18(_: float) -> nn.Module:
    return third_party_models.resnet18()


def _mobilenet_v3_small(dropout: float) -> nn.Module:
    torch.manual_seed(0)
    make = torchvision.models.mobilenet_v3_small
    return make(num_classes=CLASSES, dropout=dropout).double()


def _small_vit(dropout: float) -> nn.Module:
    """A reduced vit_b_16 that trains in a second."""
    torch.manual_seed(0)
    return torchvision.models.VisionTransformer(
        image_size=SIDE,
        patch_size=SIDE // 2,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        dropout=dropout,
        attention_dropout=dropout,
        num_classes=CLASSES,
    ).double()


RECIPES = {
    "resnet18": Recipe(
        _resnet18, third_party_models.image_batches, SGD, has_batch_norm=True, has_dropout=False
    ),
    "mobilenet_v3_small": Recipe(
        _mobilenet_v3_small, third_party_models.image_batches, SGD, has_batch_norm=True
    ),
    "small_vit": Recipe(_small_vit, third_party_models.image_batches, ADAMW),
    "bert": Recipe(third_party_models.bert, third_party_models.sentence_batches, ADAMW),
}


def export(repository: Path, name: str, dropout: float) -> str:
    """Adds the model of a recipe to a repository. Returns its name there."""
    recipe = RECIPES[name]
    added = f"{name}_with_dropout" if dropout else name
    inputs, _ = recipe.batches(1, 2)[0]
    models.export_pair(repository / added, recipe.make(dropout), inputs)
    return added


def first(outputs: Any) -> Tensor:
    """Returns the logits, which may be in a tuple."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


@functools.cache
def in_pytorch(name: str, steps: int) -> Run:
    """Trains on the whole batch, without dropout."""
    recipe = RECIPES[name]

    def loss(module: nn.Module, step: int, batch: Batch) -> Tensor:
        inputs, targets = batch
        return functional.cross_entropy(first(module(**inputs)), targets["target"])

    batches = long_training.cycle(recipe.batches(5, ROWS), steps)
    return long_training.in_pytorch(recipe.make(0.0), batches, recipe.optimizer, loss)


def on_server(
    client: braid.Client, name: str, steps: int, model: str | None = None, **options: Any
) -> Run:
    """model: its name in the repository, if not `name`. Batch norm is synchronized, so the number
    of replicas makes no difference."""
    recipe = RECIPES[name]
    return long_training.on_server(
        client,
        model or name,
        long_training.cycle(recipe.batches(5, ROWS), steps),
        loss="cross_entropy",
        optimizer=recipe.optimizer,
        sync_batch_norm=recipe.has_batch_norm,
        **options,
    )
