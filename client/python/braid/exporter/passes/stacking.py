"""Stacking of gradients of a tensor that forward split into parts along a dim.

For example, attention selects queries, keys and values from one projection. Autograd pads each
part's gradient with zeros to the full size and adds the results.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from braid.exporter.passes.graph_utils import insert_call

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default)


def stack_gradients(module: GraphModule) -> None:
    """Replaces the sum of select_backward of all parts by a stack of the parts, in place."""
    for node in list(module.graph.nodes):
        if node.target == _aten.add.Tensor and not _is_term(node):
            parts = _parts(node)
            if parts is not None:
                node.replace_all_uses_with(_stack(module, node, parts))
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_term(node: Node) -> bool:
    """Returns True if the node's only use is in another sum, which is handled instead."""
    (user, *others) = node.users or [None]
    return not others and user is not None and user.target == _aten.add.Tensor


def _parts(node: Node) -> tuple[list[Node], int] | None:
    """Returns the parts in order and the dim, if the sum contains every part exactly once."""
    terms = _terms(node)
    if len(terms) < 2 or any(term.target != _aten.select_backward.default for term in terms):
        return None
    _, sizes, dim, _ = terms[0].args
    indices = {term.args[3]: term for term in terms}
    if any(list(term.args[1]) != list(sizes) or term.args[2] != dim for term in terms):
        return None
    if sizes[dim] != len(terms) or sorted(indices) != list(range(len(terms))):
        return None
    return [indices[index].args[0] for index in range(len(terms))], dim


def _terms(node: Node) -> list[Node]:
    if node.target != _aten.add.Tensor or node.kwargs:
        return [node]
    terms: list[Node] = []
    for operand in node.args:
        if not isinstance(operand, Node):
            return [node]
        inner = len(operand.users) == 1
        terms += _terms(operand) if inner else [operand]
    return terms


def _stack(module: GraphModule, before: Node, found: tuple[list[Node], int]) -> Node:
    parts, dim = found
    sources = [_source(part) for part in parts]
    if dim == 0 and all(source is not None for source in sources) and _alike(sources):
        # A stack copies, so the parts need no copy before the view.
        whole = insert_call(module, before, _aten.stack.default, sources, 0)
        return insert_call(
            module, before, _aten.view.default, whole, [len(parts), *parts[0].args[1]]
        )
    return insert_call(module, before, _aten.stack.default, parts, dim)


def _source(part: Node) -> Node | None:
    """Returns the node that `part` is a reshaped contiguous copy of, if any."""
    if part.target not in _VIEWS or part.args[0].target != _aten.clone.default:
        return None
    return part.args[0].args[0]


def _alike(nodes: list[Node]) -> bool:
    first = nodes[0].meta["val"]
    return all(node.meta["val"].shape == first.shape for node in nodes)
