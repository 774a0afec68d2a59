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
    # Inputs of forward whose sizes backward may need.
    others = [each for each in before.values() if each.op == "placeholder" and is_tensor(each)]
    first = next((n for n in backward.graph.nodes if n.op != "placeholder"), None)
    sizes: dict[sympy.Expr, Node] = {}
    made: dict[Node, Node] = {}

    def compute(number: Node) -> Node:
        if number not in made:
            if any(map(is_tensor, number.all_input_nodes)):
                expression = sympy.sympify(number.meta["val"].node.expr)
                made[number] = _size(backward, expression, tensors, others, sizes)
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
    module: GraphModule,
    expression: sympy.Expr,
    tensors: list[Node],
    others: list[Node],
    sizes: dict[sympy.Expr, Node],
) -> Node:
    """Returns a node for the number. Adds one of `others` to `tensors` if only it has the size."""
    if expression in sizes:
        return sizes[expression]
    found = _dim_of_size(expression, tensors)
    if found is None and expression.is_Symbol:
        tensor, dim = _dim_of_size(expression, others)
        last = placeholders(module)[-1]
        with module.graph.inserting_after(last):
            taken = module.graph.placeholder(tensor.name)
        taken.meta = dict(tensor.meta)
        tensors.append(taken)
        found = taken, dim
    if found is not None:
        tensor, dim = found
        node = module.graph.call_function(_aten.sym_size.int, found)
        node.meta["val"] = tensor.meta["val"].shape[dim]
        sizes[expression] = node
        return node
    symbols = {
        symbol: Proxy(_size(module, symbol, tensors, others, sizes))
        for symbol in expression.free_symbols
    }
    before = set(module.graph.nodes)
    made = sympy_interp(PythonReferenceAnalysis, symbols, expression).node
    for node in module.graph.nodes:
        if node not in before:
            values = torch.fx.node.map_arg(node.args, lambda each: each.meta["val"])
            node.meta["val"] = node.target(*values)
    sizes[expression] = made
    return made


def _dim_of_size(expression: sympy.Expr, tensors: list[Node]) -> tuple[Node, int] | None:
    for tensor in tensors:
        for dim, size in enumerate(tensor.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr == expression:
                return tensor, dim
    return None
