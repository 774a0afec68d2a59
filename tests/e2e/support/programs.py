"""Files that torch.export and AOTInductor write: models that are run and never trained."""

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

# An argument: a tensor, or tuples, lists and dicts of them.
Example = Sequence[Any]
# For each tensor of an example which of its dimensions are of any size.
Sizes = Sequence[Any]


def any_batch(example: Example, **bounds: int) -> Sizes:
    """All tensors have as many rows as each other. bounds: min, max."""
    rows = Dim("rows", **bounds)
    return pytree.tree_map(lambda _: {0: rows}, tuple(example))


def save(path: Path, module: nn.Module, example: Example, sizes: Sizes) -> None:
    path.parent.mkdir(parents=True)
    torch.export.save(_export(module, example, sizes), path)


def compile(
    path: Path, module: nn.Module, example: Example, sizes: Sizes | None
) -> None:
    path.parent.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _export(module, example, sizes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def compile_from_one(
    path: Path, module: nn.Module, example: Example, sizes: Sizes
) -> None:
    """As `compile`, for sizes of 1 too: else PyTorch takes 1 for a case of its own."""
    with symbolic_shapes.patch(backed_size_oblivious=True):
        compile(path, module, example, sizes)


def _export(module: nn.Module, example: Example, sizes: Sizes | None) -> ExportedProgram:
    return torch.export.export(module.eval(), tuple(example), dynamic_shapes=sizes)
