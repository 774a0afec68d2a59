"""Floor division and remainder of whole numbers for an interpreter that computes them as C++ does.

It rounds towards zero, which is the same where nothing is negative.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from braid._export import ExportError
from braid.exporter import lines, source
from braid.exporter.nodes import call

_FEWEST_ROWS = 1
_SOME_ROWS = (*range(_FEWEST_ROWS, 130), 1000, 1 << 16, 1 << 20)


def divide_by_truncating(module: GraphModule, node: Node) -> None:
    """Rewrites a floordiv or mod of which a number may be negative."""
    dividend, divisor = node.args
    sign = _sign(divisor)
    if sign == 0:
        raise ExportError(
            f"forward divides without decimals by {_said(divisor)}, which the server's "
            f"interpreter does only by what is above zero, or below, for any number of rows"
            + source.at(lines.of(node))
        )
    if sign > 0 and _range(dividend)[0] >= 0:
        return
    if sign > 0:
        result = _floor(module, node, dividend, divisor)
    else:
        result = _floor(module, node, *(_call(module, node, operator.neg, n) for n in node.args))
    if node.target is operator.mod:
        product = _call(module, node, operator.mul, result, divisor)
        result = _call(module, node, operator.sub, dividend, product)
    # What is known of tensors' sizes is written as it was.
    result.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(result)
    module.graph.erase_node(node)


def _floor(module: GraphModule, node: Node, dividend: Any, divisor: Any) -> Any:
    """Of a divisor above zero: what is above zero is divided, less what is below, rounded up."""
    below = _call(module, node, operator.neg, dividend)
    if _range(dividend)[1] > 0:
        below = _call(module, node, torch.sym_max, below, 0)
    added = _call(module, node, operator.sub, divisor, 1)
    rounded = _call(module, node, operator.add, below, added)
    down = _call(module, node, operator.floordiv, rounded, divisor)
    if _range(dividend)[1] <= 0:
        return _call(module, node, operator.neg, down)
    above = _call(module, node, torch.sym_max, dividend, 0)
    up = _call(module, node, operator.floordiv, above, divisor)
    return _call(module, node, operator.sub, up, down)


def _call(module: GraphModule, node: Node, function: Any, *args: Any) -> Any:
    if not any(isinstance(each, Node) for each in args):
        return function(*args)
    return call(module, node, function, *args)


def _range(number: Any) -> tuple[Any, Any]:
    """The least and the greatest that it can be, for any number of rows."""
    expression = _expression(number)
    rows = ValueRanges(_FEWEST_ROWS, int_oo)
    bounds = bound_sympy(expression, dict.fromkeys(expression.free_symbols, rows))
    return bounds.lower, bounds.upper


def _sign(number: Any) -> int:
    """1 or -1 if that is its sign for any number of rows, else 0."""
    least, most = _range(number)
    if least <= 0 <= most:
        # What is known is less than what holds, as where rows are filled up to a multiple.
        expression = _expression(number)
        values = [expression.subs(dict.fromkeys(expression.free_symbols, n)) for n in _SOME_ROWS]
        least, most = min(values), max(values)
    return 1 if least > 0 else -1 if most < 0 else 0


def _expression(number: Any) -> sympy.Expr:
    value = number.meta["val"] if isinstance(number, Node) else number
    return sympy.sympify(value.node.expr if isinstance(value, torch.SymInt) else value)


def _said(number: Any) -> str:
    expression = _expression(number)
    return str(expression.subs(dict.fromkeys(expression.free_symbols, sympy.Symbol("rows"))))
