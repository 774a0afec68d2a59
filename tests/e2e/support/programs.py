"""Inference-only files that torch.export and AOTInductor write."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as symbolic_shapes
from torch.utils import _pytree as pytree

from e2e.support import exports

# Arguments of forward: tensors, or tuples, lists and dicts of tensors.
Example = Sequence[Any]
# The dynamic dimensions of each tensor of an example.
Sizes = Sequence[Any]


def any_batch(example: Example, **bounds: int) -> Sizes:
    """Makes the first dimension of all tensors dynamic and equal. bounds: min, max."""
    rows = Dim("rows", **bounds)
    return pytree.tree_map(lambda _: {0: rows}, tuple(example))


def save(path: Path, module: nn.Module, example: Example, sizes: Sizes) -> None:
    path.parent.mkdir(parents=True)
    torch.export.save(_export(module, example, sizes), path)


def compile(
    path: Path, module: nn.Module, example: Example, sizes: Sizes | None
) -> None:
    _compile(path, module, example, sizes, from_one=False)


def compile_from_one(
    path: Path, module: nn.Module, example: Example, sizes: Sizes
) -> None:
    """Like `compile`, but also allows sizes of 1, which PyTorch otherwise specializes."""
    _compile(path, module, example, sizes, from_one=True)


def _compile(
    path: Path, module: nn.Module, example: Example, sizes: Sizes | None, from_one: bool
) -> None:
    def write(folder: Path) -> None:
        folder.mkdir()
        with warnings.catch_warnings(), symbolic_shapes.patch(backed_size_oblivious=from_one):
            warnings.simplefilter("ignore")
            program = _export(module, example, sizes)
            torch._inductor.aoti_compile_and_package(program, package_path=str(folder / path.name))

    exports.kept(path.parent, module, (path.name, example, repr(sizes), from_one), write)


def _export(module: nn.Module, example: Example, sizes: Sizes | None) -> ExportedProgram:
    return torch.export.export(module.eval(), tuple(example), dynamic_shapes=sizes)
