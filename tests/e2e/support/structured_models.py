"""Models whose forward takes tuples, lists, dicts and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from e2e.support import models, programs
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
    """Multiplies rows by `factor`, raises them to `power` and optionally negates them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, power: int = 1, factor: float = 1.0, negate: bool = False) -> Tensor:
        y = self.linear(x) ** power * factor
        return -y if negate else y


class MaybeScaled(nn.Module):
    """Takes numbers that may be None."""

    def forward(self, x: Tensor, factor: float | None = None, shift: int | None = 3) -> Tensor:
        if factor is not None:
            x = x * factor
        return x if shift is None else x + shift


class Demanding(nn.Module):
    """Like Scaled, but its number has no default."""

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


class Leaves(nn.Module):
    """Returns a tuple in a dict."""

    def forward(self, a: Tensor, b: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        return {"both": (a + b, a - b), "swapped": (b, a)}


class Outputs(NamedTuple):
    """Outputs of torchvision's scripted GoogLeNet."""

    logits: Tensor
    aux: Optional[Tensor]  # noqa: UP045
    last: Tensor


class Auxiliary(nn.Module):
    """Returns None in evaluation mode for an output between two others."""

    def forward(self, x: Tensor) -> Outputs:
        aux: Optional[Tensor] = None  # noqa: UP045
        if self.training:
            aux = x * 3
        return Outputs(x * 2, aux, x - 1)


class KeyedAuxiliary(nn.Module):
    """Like Auxiliary, with a dict."""

    def forward(self, x: Tensor) -> dict[str, Optional[Tensor]]:  # noqa: UP045
        outputs: dict[str, Optional[Tensor]] = {}  # noqa: UP045
        outputs["aux"] = x * 3 if self.training else None
        outputs["logits"] = x * 2
        return outputs


def _rows(count: int) -> list[Tensor]:
    """Returns distinct tensors: torch.export treats a tensor that is passed twice as one input."""
    return [torch.zeros(2, 2) for _ in range(count)]


@dataclass(frozen=True)
class Structured:
    """example: arguments of forward. names: of inputs and outputs in config.pbtxt; None if the
    example describes the model."""

    make: Callable[[], nn.Module]
    example: tuple[Any, ...]
    names: tuple[list[str], list[str]] | None = None


def _make_models() -> dict[str, Structured]:
    """Returns models with the names of the leaves, some also with Triton's names."""
    x, two = tuple(_rows(1)), tuple(_rows(2))
    pair = (tuple(_rows(2)), *x)
    keys = ({"a": two[0], "b": two[1]},)
    return {
        "tupled": Structured(Tupled, pair, (["x", "pair.1", "pair.0"], ["y"])),
        "tupled_by_number": Structured(
            Tupled, pair, (["INPUT__2", "INPUT__0", "INPUT__1"], ["OUTPUT__0"])
        ),
        "tupled_by_example": Structured(Tupled, pair),
        "listed": Structured(
            Listed, (_rows(3),), (["parts.0", "parts.1", "parts.2"], ["total", "first"])
        ),
        "listed_by_number": Structured(
            Listed, (_rows(2),), (["INPUT__0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"])
        ),
        "keyed": Structured(Keyed, keys, (["batch.b", "batch.a"], ["a", "sum"])),
        "keyed_by_key": Structured(Keyed, keys, (["b", "a"], ["sum", "a"])),
        "keyed_by_example": Structured(Keyed, keys),
        "nested": Structured(
            Nested,
            (Pair(*two), {"xs": _rows(2)}),
            (["pair.left", "pair.right", "more.xs.0", "more.xs.1"], ["both.0", "both.1"]),
        ),
        "unmasked": Structured(Masked, x, (["x"], ["y"])),
        "unmasked_by_example": Structured(Masked, x),
        "masked": Structured(Masked, two, (["x", "mask"], ["y"])),
        "masked_by_example": Structured(Masked, two),
        "scaled": Structured(scaled, x, (["x"], ["y"])),
        "scaled_by_default": Structured(scaled, x),
        "scaled_by_example": Structured(scaled, (*x, 2, 0.5, True)),
        "maybe_scaled": Structured(MaybeScaled, x, (["x"], ["y"])),
        "demanding": Structured(Demanding, (*x, 2), (["x"], ["y"])),
        "leaves": Structured(Leaves, two),
        "auxiliary": Structured(Auxiliary, x, (["x"], ["logits", "last"])),
        "auxiliary_by_example": Structured(Auxiliary, x),
        "keyed_auxiliary": Structured(KeyedAuxiliary, x, (["x"], ["logits"])),
        "keyed_auxiliary_by_example": Structured(KeyedAuxiliary, x),
        "absent": Structured(KeyedAuxiliary, x, (["x"], ["aux"])),
    }


_MODELS = _make_models()
# The inputs of a pair are tensors with their own names. torch.export supports only registered
# NamedTuples and makes a number or None a constant. Compiling takes 5 s, so one model is enough.
_WITH_NONE = [name for name in _MODELS if "auxiliary" in name or name == "absent"]
_HELD = {
    "torchscript": [
        name
        for name in _MODELS
        if name not in ("unmasked_by_example", "masked_by_example", "scaled_by_default")
    ],
    "pair": ["unmasked_by_example", "masked_by_example", "scaled_by_default", "leaves"],
    "exported": [
        name
        for name in _MODELS
        if name not in ("nested", "scaled_by_example", "maybe_scaled", "demanding", *_WITH_NONE)
    ],
    "aot": ["tupled_by_number"],
}


def names_in(format: str) -> list[str]:
    """Returns the names of the models in a repository in `format`."""
    return _HELD[format]


def export_all(repository: Path, format: str) -> None:
    write = {
        "torchscript": _write_script,
        "pair": _write_pair,
        "exported": _write_program,
        "aot": _write_compiled,
    }[format]
    for name in names_in(format):
        model = _MODELS[name]
        write(repository / name, model)
        if model.names is not None:
            (repository / name / "config.pbtxt").write_text(config(*model.names))


def _write_script(directory: Path, model: Structured) -> None:
    inputs = list(model.example) if model.names is None else None
    models.export(directory, model.make(), inputs=inputs)


def _write_pair(directory: Path, model: Structured) -> None:
    models.export_pair(directory, model.make(), model.example)


def _write_program(directory: Path, model: Structured) -> None:
    sizes = programs.any_batch(model.example)
    programs.save(directory / "1/model.pt2", model.make(), model.example, sizes)


def _write_compiled(directory: Path, model: Structured) -> None:
    sizes = programs.any_batch(model.example)
    programs.compile_from_one(directory / "1/model.pt2", model.make(), model.example, sizes)
