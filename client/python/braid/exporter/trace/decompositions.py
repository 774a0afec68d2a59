"""Decompositions of operators whose rule in PyTorch fails for a symbolic batch size."""

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
def patched() -> Iterator[None]:
    """Replaces PyTorch's rules during a trace."""
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


def _kron(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    dims = max(one.dim(), other.dim())
    sizes = [[1] * (dims - each.dim()) + [*each.shape] for each in (one, other)]
    outer = [size for its in sizes[0] for size in (its, 1)]
    inner = [size for its in sizes[1] for size in (1, its)]
    product = one.reshape(outer) * other.reshape(inner)
    return product.reshape([its * others for its, others in zip(*sizes)])


def _matrix_norm(
    tensor: torch.Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    matrices = tensor.to(dtype or tensor.dtype).movedim(tuple(dim), (-2, -1))
    if ord == "fro":
        norm = torch.linalg.vector_norm(matrices, 2, (-2, -1))
    elif ord == "nuc":
        norm = torch.linalg.svdvals(matrices).sum(-1)
    else:
        if abs(ord) == 2:
            values = torch.linalg.svdvals(matrices)
        else:
            values = matrices.abs().sum(-2 if abs(ord) == 1 else -1)
        norm = values.amax(-1) if ord > 0 else values.amin(-1)
    if keepdim:
        for each in sorted(place % tensor.dim() for place in dim):
            norm = norm.unsqueeze(each)
    return norm


RULES = {
    _aten.affine_grid_generator_backward.default: _affine_grid_backward,
    _aten.chain_matmul.default: _multi_dot,
    _aten.kron.default: _kron,
    _aten.linalg_matrix_norm.default: _matrix_norm,
    _aten.linalg_matrix_norm.str_ord: _matrix_norm,
    _aten.linalg_multi_dot.default: _multi_dot,
    _aten.std_mean.dim: _std_mean,
    _aten.take_along_dim.default: _take_along_dim,
}
