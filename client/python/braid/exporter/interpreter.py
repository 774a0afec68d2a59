"""Writes what LibTorch's interpreter does not run, or wrongly, as what it does."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from braid._export import ExportError
from braid.exporter import lines, source
from braid.exporter.floor_division import divide_by_truncating
from braid.exporter.numbers_as_tensors import put_tensors

_aten = torch.ops.aten
# Of numbers that are computed from the number of rows.
_OF_WHOLE_NUMBERS = {
    operator.eq, operator.floordiv, operator.ge, operator.gt, operator.le, operator.lt,
    operator.mod, operator.ne, torch.sym_max, torch.sym_min,
}  # fmt: skip
_FUNCTIONS = _OF_WHOLE_NUMBERS | {
    operator.add, operator.and_, operator.mul, operator.neg, operator.pow, operator.sub,
    operator.truediv, operator.getitem, math.trunc,
}  # fmt: skip
_DIVISIONS = (operator.floordiv, operator.mod)
_SQUARE_ROOTS = (torch.sym_sqrt, torch._sym_sqrt)
_REDUCTIONS = (_aten.sum.dim_IntList, _aten.mean.dim)


def has(function: Any) -> bool:
    """Of those that are no operators."""
    return function in _FUNCTIONS


def adapt(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target is torch.sym_float:  # A quotient is a float.
            node.target, node.args = operator.truediv, (node.args[0], 1)
        elif node.target in _SQUARE_ROOTS:
            node.target, node.args = operator.pow, (node.args[0], 0.5)
        elif node.target in _REDUCTIONS:
            _name_dims(node)
        elif node.target in _OF_WHOLE_NUMBERS:
            _check_whole(node)
            if node.target in _DIVISIONS:
                divide_by_truncating(module, node)
        else:
            put_tensors(module, node)
    module.recompile()


def _check_whole(node: Node) -> None:
    values = [each.meta["val"] if isinstance(each, Node) else each for each in node.args]
    if any(isinstance(each, (float, torch.SymFloat)) for each in values):
        raise ExportError(
            f"forward computes {node.target.__name__} of a number with decimals that it has made "
            f"of the number of rows, which the server's interpreter does of whole numbers alone"
            + source.at(lines.of(node))
        )


def _name_dims(node: Node) -> None:
    """It takes a dim that is None for a list of them."""
    tensor, dims, *others = node.args
    if dims is None:
        node.args = (tensor, list(range(tensor.meta["val"].dim())), *others)
