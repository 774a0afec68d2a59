"""Writes what LibTorch's interpreter does not run, or wrongly, as what it does."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
# Of numbers that are computed from the number of rows.
_FUNCTIONS = {
    operator.add, operator.and_, operator.eq, operator.floordiv, operator.ge, operator.gt,
    operator.le, operator.lt, operator.mod, operator.mul, operator.ne, operator.neg, operator.pow,
    operator.sub, operator.truediv, operator.getitem, math.trunc,
    torch.sym_max, torch.sym_min,
}  # fmt: skip
_SQUARE_ROOTS = (torch.sym_sqrt, torch._sym_sqrt)
_REDUCTIONS = (_aten.sum.dim_IntList, _aten.mean.dim)


def has(function: Any) -> bool:
    """Of those that are no operators."""
    return function in _FUNCTIONS


def adapt(module: GraphModule) -> None:
    for node in module.graph.nodes:
        if node.target is torch.sym_float:  # A quotient is a float.
            node.target, node.args = operator.truediv, (node.args[0], 1)
        elif node.target in _SQUARE_ROOTS:
            node.target, node.args = operator.pow, (node.args[0], 0.5)
        elif node.target in _REDUCTIONS:
            _name_dims(node)
    module.recompile()


def _name_dims(node: Node) -> None:
    """It takes a dim that is None for a list of them."""
    tensor, dims, *others = node.args
    if dims is None:
        node.args = (tensor, list(range(tensor.meta["val"].dim())), *others)
