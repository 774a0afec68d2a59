"""Numbers that a graph computes from the number of rows, such as `1.0 / x.shape[0]`."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import GraphModule

# LibTorch's interpreter has these, and none of PyTorch's own for sizes.
_INTERPRETED = {
    operator.add, operator.and_, operator.eq, operator.floordiv, operator.ge, operator.gt,
    operator.le, operator.lt, operator.mod, operator.mul, operator.ne, operator.neg, operator.pow,
    operator.sub, operator.truediv, operator.getitem, math.trunc,
}  # fmt: skip
_SQUARE_ROOTS = (torch.sym_sqrt, torch._sym_sqrt)


def is_interpreted(target: Any) -> bool:
    return target in _INTERPRETED


def write_out(module: GraphModule) -> None:
    """A float of a size as a quotient, which is one, and a root as a power."""
    for node in module.graph.nodes:
        if node.target is torch.sym_float:
            node.target, node.args = operator.truediv, (node.args[0], 1)
        elif node.target in _SQUARE_ROOTS:
            node.target, node.args = operator.pow, (node.args[0], 0.5)
    module.recompile()
