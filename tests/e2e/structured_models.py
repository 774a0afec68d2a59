"""Models whose forward takes tuples, lists, dicts and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

import torch
from e2e import models
from torch import Tensor, nn


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Tupled(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        return pair[0] * 2 - pair[1] + x


class Listed(nn.Module):
    def forward(self, parts: list[Tensor]) -> list[Tensor]:
        total = torch.zeros_like(parts[0])
        for index, part in enumerate(parts):
            total = total + part * (index + 1)
        return [total, parts[0]]


class Keyed(nn.Module):
    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sum": batch["a"] + batch["b"], "a": batch["a"]}


class Nested(nn.Module):
    def forward(self, pair: Pair, more: dict[str, list[Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        first = more["xs"][0] + pair.left
        return {"both": (first, more["xs"][1] - pair.right)}


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        return x if mask is None else x * mask


class Scaled(nn.Module):
    """Rows times `factor`, to the power of `power`, negated or not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, power: int = 1, factor: float = 1.0, negate: bool = False) -> Tensor:
        y = self.linear(x) ** power * factor
        return -y if negate else y


class Demanding(nn.Module):
    """As Scaled, but its number has no default."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, power: int) -> Tensor:
        return self.linear(x) ** power


def config(inputs: list[str], outputs: list[str], dims: str = "[ 2 ]") -> str:
    def tensors(names: list[str]) -> str:
        return ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: {dims} }}' for name in names)

    return f"max_batch_size: 8\ninput [ {tensors(inputs)} ]\noutput [ {tensors(outputs)} ]\n"


def scaled() -> Scaled:
    torch.manual_seed(0)
    return Scaled()


def export_all(repository: Path) -> None:
    """Each by the names of its leaves, and some by Triton's names as well."""
    x = torch.zeros(2, 2)
    for name, module, inputs, outputs in [
        ("tupled", Tupled(), ["x", "pair.1", "pair.0"], ["y"]),
        ("tupled_by_number", Tupled(), ["INPUT__2", "INPUT__0", "INPUT__1"], ["OUTPUT__0"]),
        ("listed", Listed(), ["parts.0", "parts.1", "parts.2"], ["total", "first"]),
        ("listed_by_number", Listed(), ["INPUT__0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"]),
        ("keyed", Keyed(), ["batch.b", "batch.a"], ["a", "sum"]),
        ("keyed_by_key", Keyed(), ["b", "a"], ["sum"]),
        (
            "nested",
            Nested(),
            ["pair.left", "pair.right", "more.xs.0", "more.xs.1"],
            ["both.0", "both.1"],
        ),
        ("unmasked", Masked(), ["x"], ["y"]),
        ("masked", Masked(), ["x", "mask"], ["y"]),
        ("scaled", scaled(), ["x"], ["y"]),
        ("demanding", Demanding(), ["x"], ["y"]),
    ]:
        models.export(repository / name, module, config=config(inputs, outputs))
    models.export(repository / "tupled_by_example", Tupled(), inputs=[(x, x), x])
    models.export(repository / "keyed_by_example", Keyed(), inputs=[{"a": x, "b": x}])
    models.export(repository / "scaled_by_example", scaled(), inputs=[x, 2, 0.5, True])


class Leaves(nn.Module):
    """Outputs in a tuple in a dict."""

    def forward(self, a: Tensor, b: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {"both": (a + b, a - b), "swapped": (b, a)}


def export_pairs(repository: Path) -> None:
    """What a pair can hold: inputs are tensors, numbers have their defaults."""
    x = torch.zeros(2, 2)
    for name, module, inputs in [
        ("unmasked", Masked(), {"x": x}),
        ("masked", Masked(), {"x": x, "mask": x}),
        ("scaled", scaled(), {"x": x}),
        ("leaves", Leaves(), {"a": x, "b": x}),
    ]:
        models.export_pair(repository / name, module, inputs)
