"""Removal of no-op operators from a graph, because each call costs the server time."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
# Operators that return a view if possible, else a copy.
_MAYBE_VIEWS = {
    f"aten::{name}"
    for name in ("reshape", "contiguous", "to", "_to_copy", "flatten", "dropout", "_unsafe_view")
}
# Operators that only raise errors. On a GPU, such an error makes the device unusable.
_CHECKS = (
    _aten._assert_async.default, _aten._assert_async.msg, _aten._linalg_check_errors.default,
)  # fmt: skip
_SAME_SHAPE = (_aten.view.default, _aten.expand.default, _aten._unsafe_view.default)


def simplify(module: GraphModule) -> None:
    """Removes error checks and copies that nothing needs, in place.

    The graph writes to no tensor and records no gradients, so a detached tensor or a copy is the
    tensor itself. Copies that make an output a tensor of its own stay.
    """
    for node in list(module.graph.nodes):
        if node.target in _CHECKS:
            module.graph.erase_node(node)
            continue
        same = _same_as(node)
        if same is not None:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _same_as(node: Node) -> Node | None:
    if node.op != "call_function":
        return None
    if node.target in (_aten.detach.default, _aten.alias.default):
        return node.args[0]
    if _is_transposed_back(node):
        return node.args[0].args[0]
    copies = node.target == _aten.clone.default or node.target in _SAME_SHAPE
    if copies and _is_laid_out_alike(node, node.args[0]) and not _is_returned(node):
        return node.args[0]
    return None


def _is_transposed_back(node: Node) -> bool:
    if node.target not in (_aten.t.default, _aten.transpose.int):
        return False
    inner = node.args[0]
    return inner.target == node.target and set(inner.args[1:]) == set(node.args[1:])


def _is_laid_out_alike(node: Node, other: Node) -> bool:
    mine, its = node.meta["val"], other.meta["val"]
    return [*map(_expression, (*mine.shape, *mine.stride()))] == [
        *map(_expression, (*its.shape, *its.stride()))
    ]


def _expression(size: Any) -> sympy.Expr:
    return sympy.sympify(size.node.expr if isinstance(size, torch.SymInt) else size)


def _is_returned(node: Node) -> bool:
    """Returns True if the node or a view of it is an output."""
    return any(
        user.op == "output" or (_returns_view(user.target) and _is_returned(user))
        for user in node.users
    )


def _returns_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return True  # For example, an element of a list of views.
    return schema.name in _MAYBE_VIEWS or any(each.alias_info for each in schema.returns)
