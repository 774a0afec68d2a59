"""Models whose training is compared with PyTorch's. In float64 unless the name says otherwise, so
that many steps can be compared with a small tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import braid
import torch
from e2e.support import exports, models
from torch import Tensor, nn
from torch.nn import functional


class Staged(nn.Module):
    """Two consecutive parts, for placement: 10 → 5."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        self.classifier = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class Cells(nn.Module):
    """Log-probabilities of 3 classes for each of 4 cells: 6 → [3, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).view(-1, 3, 4).log_softmax(1)


class TwoHeads(nn.Module):
    """Two named outputs of a shared body: 6 → [4] and [1]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.classes = nn.Linear(8, 4)
        self.value = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x).tanh()
        return {"classes": self.classes(hidden), "value": self.value(hidden)}


class Towers(nn.Module):
    """Three embeddings, and a positive spread of the first: 6 → [4] each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.towers = nn.ModuleList(nn.Linear(8, 4) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x).tanh()
        left, right, other, spread = [tower(hidden) for tower in self.towers]
        return {
            "left": left, "right": right, "other": other, "spread": functional.softplus(spread)
        }  # fmt: skip


class Frames(nn.Module):
    """Log-probabilities of 4 classes in each of 5 time steps: [5, 6] → [5, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).log_softmax(2)


class Nested(nn.Module):
    """Outputs in a tuple in a dict. One of them is a scalar for each chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        y = self.linear(x)
        return {"rows": (y, y.flatten(1) * 2), "chunks": (y.sum(1), y.sum())}


class WithLoss(nn.Module):
    """Returns its own loss for its own targets, as a scalar and per row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        losses = functional.cross_entropy(self.linear(x), labels, reduction="none")
        return losses.mean(), losses


class Normed(nn.Module):
    """Every kind of batch norm: plain, without parameters, with a cumulative average, and without
    running statistics, over rows and over images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 24)
        self.rows = nn.BatchNorm1d(24, momentum=0.3)
        self.conv = nn.Conv2d(2, 4, 2)
        self.images = nn.BatchNorm2d(4, eps=1e-3)
        self.bare = nn.BatchNorm2d(4, affine=False)
        self.last = nn.Linear(24, 4)
        self.untracked = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.rows(self.stem(x)).tanh().view(-1, 2, 3, 4)
        y = self.bare(self.images(self.conv(y)).tanh())
        return self.untracked(self.last(y.flatten(1)))


class InstanceNormed(nn.Module):
    """Instance norm next to batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 1)
        self.row = nn.InstanceNorm1d(4, affine=True)
        self.batch = nn.BatchNorm1d(4)
        self.bare = nn.InstanceNorm1d(4)
        self.last = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.row(self.conv(x.view(-1, 2, 3))).tanh()
        return self.last(self.bare(self.batch(y)).flatten(1))


class Backbone(nn.Module):
    """A backbone with batch norm and dropout, and a head with dropout: 6 → 4."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 5)
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class LoraLinear(nn.Module):
    """A frozen layer and a low-rank adapter, with the structure and names of peft's."""

    def __init__(self, base_layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        inputs, outputs = base_layer.in_features, base_layer.out_features
        self.base_layer = base_layer.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x)) * 2.0


class Lora(nn.Module):
    """A frozen model with adapters, under the names of peft's PeftModel: 10 → 5."""

    def __init__(self) -> None:
        super().__init__()
        layers = (LoraLinear(nn.Linear(10, 32)), nn.Tanh(), LoraLinear(nn.Linear(32, 5)))
        self.base_model = nn.Sequential()
        self.base_model.add_module("model", nn.Sequential(*layers))

    def forward(self, x: Tensor) -> Tensor:
        return self.base_model(x)


class Tied(nn.Module):
    """One weight under two names: 6 → 6."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(6, 6)
        self.decode = nn.Linear(6, 6)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).tanh())


class Branching(nn.Module):
    """Skips a layer for chunks without a positive number in column 0, and never uses another."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(6, 4)
        self.sometimes = nn.Linear(6, 4)
        self.never = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.always(x)
        if bool((x[:, 0] > 0).any()):
            y = y + self.sometimes(x)
        return y


class Words(nn.Module):
    """Embeds words of a vocabulary of 1000 in 5 dimensions."""

    def __init__(self, sparse: bool, scaled: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 10, sparse=sparse, scale_grad_by_freq=scaled)
        self.linear = nn.Linear(10, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.linear(self.embedding(words))


class Bags(nn.Module):
    """Embeds the mean of a row's words in 5 dimensions."""

    def __init__(self, sparse: bool, scaled: bool = False) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(
            1000, 10, mode="mean", sparse=sparse, scale_grad_by_freq=scaled
        )
        self.linear = nn.Linear(10, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.linear(self.bag(words))


class Root(nn.Module):
    """The root of a weighted sum: its gradient is infinite at 0, and its value is NaN below 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return (x * self.weight).sum(1, keepdim=True).sqrt()


class Counted(nn.Module):
    """Returns the number of calls in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return 0 * (x * self.weight).sum(1, keepdim=True) + self.calls


class Hungry(nn.Module):
    """Allocates 16 MiB per row temporarily."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.unsqueeze(2).expand(-1, -1, 1 << 20).mul(1.0).mean(2))


def _dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 32), nn.Dropout(0.4), nn.Tanh(), nn.Linear(32, 5))


def _half_precision() -> nn.Module:
    return models.Chain(10, 32, 32, 5, activation=nn.Tanh)


# An example in the file would untie the weights, because torch.utils.bundled_inputs copies them.
_TIED = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP64 dims: [ 6 ] } ]
output [ { name: "y" data_type: TYPE_FP64 dims: [ 6 ] } ]
"""
_WITH_LOSS = """
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP64 dims: [ 6 ] }, { name: "labels" data_type: TYPE_INT64 } ]
output [ { name: "loss" data_type: TYPE_FP64 }, { name: "losses" data_type: TYPE_FP64 } ]
"""


def _row(*shape: int) -> Tensor:
    return torch.zeros(1, *shape, dtype=torch.float64)


def _word(*shape: int) -> Tensor:
    return torch.zeros(1, *shape, dtype=torch.int64)


# Name → (module, and example input or config.pbtxt).
_MODELS = {
    "net": (lambda: models.Chain(10, 8, 6, 5, activation=nn.Tanh), _row(10)),
    "line": (lambda: nn.Linear(5, 2), _row(5)),
    "staged": (Staged, _row(10)),
    "cells": (Cells, _row(6)),
    "heads": (TwoHeads, _row(6)),
    "towers": (Towers, _row(6)),
    "frames": (Frames, _row(5, 6)),
    "nested": (Nested, _row(6)),
    "with_loss": (WithLoss, _WITH_LOSS),
    "normed": (Normed, torch.zeros(2, 6).double()),  # One row has no variance.
    "instance_normed": (InstanceNormed, torch.zeros(2, 6).double()),
    "backbone": (Backbone, torch.zeros(2, 6).double()),
    "lora": (Lora, _row(10)),
    "tied": (Tied, _TIED),
    "branching": (Branching, _row(6)),
    "words": (lambda: Words(sparse=False), _word()),
    "sparse_words": (lambda: Words(sparse=True), _word()),
    "sentences": (lambda: Words(sparse=True), _word(4)),
    "bags": (lambda: Bags(sparse=False), _word(4)),
    "sparse_bags": (lambda: Bags(sparse=True), _word(4)),
    "scaled_words": (lambda: Words(sparse=False, scaled=True), _word()),
    "scaled_bags": (lambda: Bags(sparse=False, scaled=True), _word(4)),
    "dropout": (_dropout, _row(10)),
    "root": (Root, _row(3)),
    "counted": (Counted, _row(3)),
    "hungry": (Hungry, _row(2)),
    "float32": (_half_precision, torch.zeros(1, 10)),
}


FORMATS = ("torchscript", "pair")
# Its control flow depends on values.
NO_PAIR = {"branching"}
# Options of braid.export.
_OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {"precisions": ["bfloat16", "float16"]},
    "staged": {"stages": [["features", "classifier"]]},
    "backbone": {"stages": [["backbone", "head"]], "eval_modules": ["^backbone$"]},
}
_INPUTS = {
    "tied": {"x": _row(6)},
    "with_loss": {"x": _row(6), "labels": _word()},
}


def _example(name: str) -> dict[str, Tensor] | tuple[Tensor, ...]:
    _, form = _MODELS[name]
    return _INPUTS[name] if isinstance(form, str) else (form,)


def make(name: str) -> nn.Module:
    """Returns the module that the repository has under `name`, always with the same weights."""
    torch.manual_seed(len(name))
    module, _ = _MODELS[name]
    return module() if name == "float32" else module().double()


def names_in(format: str) -> list[str]:
    """Returns the names of the models that `format` can represent."""
    return [name for name in _MODELS if format != "pair" or name not in NO_PAIR]


def export_model(directory: Path, name: str, format: str) -> None:
    _, form = _MODELS[name]
    if format == "pair":
        options = _OPTIONS.get(name, {})
        exports.export(make(name), _example(name), directory, "pair", **options)
        if isinstance(form, str):
            (directory / "config.pbtxt").write_text(form)
    elif isinstance(form, str):
        models.export(directory, make(name), config=form)
    else:
        models.export(directory, make(name), inputs=[form])
