"""Partition of a joint graph into forward and backward, which exchange only tensors."""

from __future__ import annotations

import copy
from typing import Any

import sympy
import torch
from torch._functorch.partitioners import default_partition
from torch.fx import GraphModule, Node, Proxy
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from braid.exporter.passes.graph_utils import is_tensor, outputs, placeholders, set_outputs

_aten = torch.ops.aten


def split(joint: GraphModule, forward_outputs: int) -> tuple[GraphModule, GraphModule]:
    """Returns forward and backward. Backward's inputs have names of forward nodes or tangents."""
    forward, backward = default_partition(
        copy.deepcopy(joint),
        None,
        num_fwd_outputs=forward_outputs,
        static_lifetime_input_indices=[],
    )
    _drop_unused(backward)
    _compute_numbers(backward, {node.name: node for node in joint.graph.nodes})
    _keep_outputs(forward, forward_outputs, placeholders(backward))
    return forward, backward


def _drop_unused(backward: GraphModule) -> None:
    """Removes unused nodes, including copies of random operators, which belong to forward."""
    for node in reversed(list(backward.graph.nodes)):
        if node.op == "call_function" and not node.users:
            backward.graph.erase_node(node)
    backward.recompile()


def _keep_outputs(forward: GraphModule, count: int, wanted: list[Node]) -> None:
    """Keeps the first `count` outputs, and the saved tensors that backward uses."""
    names = {node.name for node in wanted}
    nodes = outputs(forward)
    saved = [
        node
        for node in nodes[count:]
        if is_tensor(node)
        and node.op != "placeholder"
        and node.name in names
        and node not in nodes[:count]
    ]
    set_outputs(forward, nodes[:count] + saved)


def _compute_numbers(backward: GraphModule, before: dict[str, Node]) -> None:
    """Replaces number inputs by their computation from the sizes of tensors.

    before: nodes of the joint graph by name.
    """
    tensors = [node for node in placeholders(backward) if is_tensor(node)]
    first = next((n for n in backward.graph.nodes if n.op != "placeholder"), None)
    sizes: dict[sympy.Expr, Node] = {}
    made: dict[Node, Node] = {}

    def compute(number: Node) -> Node:
        if number not in made:
            if any(map(is_tensor, number.all_input_nodes)):
                expression = sympy.sympify(number.meta["val"].node.expr)
                made[number] = _size(backward, expression, tensors, sizes)
            else:
                made[number] = backward.graph.node_copy(number, compute)
        return made[number]

    with backward.graph.inserting_before(first):
        for node in placeholders(backward):
            if is_tensor(node):
                continue
            node.replace_all_uses_with(compute(before[node.name]))
            backward.graph.erase_node(node)
    backward.graph.eliminate_dead_code()
    backward.recompile()


def _size(
    module: GraphModule, expression: sympy.Expr, tensors: list[Node], sizes: dict[Any, Node]
) -> Node:
    if expression in sizes:
        return sizes[expression]
    for tensor in tensors:
        for dim, size in enumerate(tensor.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr == expression:
                node = module.graph.call_function(_aten.sym_size.int, (tensor, dim))
                node.meta["val"] = size
                sizes[expression] = node
                return node
    if expression.is_Symbol:
        raise AssertionError(f"no tensor of the backward graph has the size {expression}")
    symbols = {
        symbol: Proxy(_size(module, symbol, tensors, sizes)) for symbol in expression.free_symbols
    }
    before = set(module.graph.nodes)
    made = sympy_interp(PythonReferenceAnalysis, symbols, expression).node
    for node in module.graph.nodes:
        if node not in before:
            values = torch.fx.node.map_arg(node.args, lambda each: each.meta["val"])
            node.meta["val"] = node.target(*values)
    sizes[expression] = made
    return made
