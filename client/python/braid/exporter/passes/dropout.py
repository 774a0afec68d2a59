"""Dropout as eager mode computes it on a CPU: one random factor per element, in its dtype.

A trace contains the GPU operator instead, which draws booleans. On a CPU, it converts them element
by element in forward and backward, which is slow.
"""

from __future__ import annotations

from itertools import permutations

import torch
from torch.fx import GraphModule, Node

from braid.exporter.passes.graph_utils import insert_call

_aten = torch.ops.aten
# With more dims there are too many permutations to try.
_MAX_DIMS = 4


def draw_factors(module: GraphModule) -> None:
    """Replaces dropout on a CPU by a multiplication with random factors, in place."""
    for node in list(module.graph.nodes):
        if node.target == _aten.native_dropout.default and _has_factor(node):
            _rewrite(module, node)
        elif node.target == _aten.bernoulli.p and _is_drawn_in_place(node):
            node.replace_all_uses_with(_draw(module, node, node.args[1]))
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code(_is_needed)
    module.recompile()


def _is_needed(node: Node) -> bool:
    # A rewritten node is unused, although it counts as impure.
    rewritten = node.target == _aten.native_dropout.default
    return node.is_impure() and not rewritten


def _has_factor(node: Node) -> bool:
    tensor, probability, training = node.args
    value = tensor.meta["val"]
    on_cpu = value.device.type == "cpu" and _order_in_memory(value) is not None
    used = [user for user in node.users if user.args[1] == 1]
    return (
        on_cpu
        and training is True
        and probability < 1
        and all(
            user.target == _aten.native_dropout_backward.default
            for mask in used
            for user in mask.users
        )
    )


def _is_drawn_in_place(node: Node) -> bool:
    """Returns True if a draw fills a permuted tensor like the input, as in alpha dropout.

    The traced operator draws in row-major order instead.
    """
    return node.args[0].target == _aten.empty_like.default and _order_in_memory(
        node.args[0].meta["val"]
    ) not in (None, list(range(node.meta["val"].dim())))


def _order_in_memory(tensor: torch.Tensor) -> list[int] | None:
    """Returns the dims in memory order, in which PyTorch draws, or None if unknown.

    None for tensors with gaps, and for non-contiguous half-precision tensors, for which PyTorch
    uses another order.
    """
    own = list(range(tensor.dim()))
    if tensor.is_contiguous():
        return own
    if tensor.dtype not in (torch.float32, torch.float64) or tensor.dim() > _MAX_DIMS:
        return None
    orders = map(list, permutations(own))
    return next((order for order in orders if tensor.permute(order).is_contiguous()), None)


def _draw(module: GraphModule, node: Node, probability: float) -> Node:
    tensor = node.args[0]
    order = _order_in_memory(tensor.meta["val"])
    if order == sorted(order):
        return insert_call(module, node, _aten.bernoulli.p, tensor, probability)
    laid_out = insert_call(module, node, _aten.permute.default, tensor, order)
    drawn = insert_call(module, node, _aten.bernoulli.p, laid_out, probability)
    back = [order.index(dim) for dim in range(len(order))]
    return insert_call(module, node, _aten.permute.default, drawn, back)


def _rewrite(module: GraphModule, node: Node) -> None:
    tensor, probability, _ = node.args
    kept = 1 - probability
    factor = insert_call(module, node, _aten.div.Tensor, _draw(module, node, kept), kept)
    output = insert_call(module, node, _aten.mul.Tensor, tensor, factor)
    for element in list(node.users):
        if element.args[1] == 0:
            element.replace_all_uses_with(output)
            continue
        for backward in list(element.users):
            gradient = insert_call(module, backward, _aten.mul.Tensor, backward.args[0], factor)
            backward.replace_all_uses_with(gradient)
            module.graph.erase_node(backward)
