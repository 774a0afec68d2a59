"""Operators that PyTorch makes of others, where its own rule fails for a number of rows that is not
known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decompositions

_aten = torch.ops.aten
_KEY = DispatchKey.CompositeImplicitAutograd


@contextmanager
def corrected() -> Iterator[None]:
    """For a trace."""
    before = {operator: dict(operator.py_kernels) for operator in RULES}
    for operator, rule in RULES.items():
        _set_kernels(operator, before[operator] | {_KEY: rule})
    try:
        yield
    finally:
        for operator, kernels in before.items():
            _set_kernels(operator, kernels)


def _set_kernels(operator: Any, kernels: dict[Any, Any]) -> None:
    operator._dispatch_cache.clear()
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)


def _take_along_dim(
    tensor: torch.Tensor, indices: torch.Tensor, dim: int | None = None
) -> torch.Tensor:
    if dim is None:
        return tensor.reshape(-1).gather(0, indices.reshape(-1))
    others = [list(each.shape) for each in (tensor, indices)]
    for shape in others:
        shape[dim] = 1
    common = torch.broadcast_shapes(*others)

    def expanded(each: torch.Tensor) -> torch.Tensor:
        shape = list(common)
        shape[dim] = each.shape[dim]
        return each.expand(shape)

    return expanded(tensor).gather(dim, expanded(indices))


def _multi_dot(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.matmul, tensors)


def _std_mean(
    tensor: torch.Tensor, dim: Any, unbiased: bool = True, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return _aten.std_mean.correction(tensor, dim, correction=int(unbiased), keepdim=keepdim)


def _affine_grid_backward(
    gradient: torch.Tensor, size: Sequence[Any], align_corners: bool
) -> torch.Tensor:
    batch, _, *space = size
    make_grid = decompositions._make_base_grid_4d
    if len(space) == 3:
        make_grid = decompositions._make_base_grid_5d
    grid = make_grid(gradient, *space, align_corners=align_corners)
    of_points = gradient.reshape(batch, -1, len(space))
    return of_points.mT @ grid.view(-1, len(space) + 1)


RULES = {
    _aten.affine_grid_generator_backward.default: _affine_grid_backward,
    _aten.chain_matmul.default: _multi_dot,
    _aten.linalg_multi_dot.default: _multi_dot,
    _aten.std_mean.dim: _std_mean,
    _aten.take_along_dim.default: _take_along_dim,
}
