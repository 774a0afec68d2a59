"""Properties of the embeddings in a graph: valid index ranges and gradient scaling."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
# Operators that count from 0, or from another number, so that the last one is no smaller.
_POSITIONS = (_aten.arange.default, _aten.arange.start, _aten.arange.start_step)
_LOOKUPS = (_aten.embedding.default, _aten.embedding_bag.padding_idx)
# Operators that change the shape or the integer type, but no value.
_SAME_VALUES = {
    f"aten::{name}"
    for name in (
        "view",
        "reshape",
        "_unsafe_view",
        "flatten",
        "unsqueeze",
        "squeeze",
        "expand",
        "transpose",
        "permute",
        "t",
        "clone",
        "contiguous",
        "to",
        "_to_copy",
        "alias",
        "detach",
    )
}


def index_ranges(graph: GraphModule) -> dict[str, tuple[int, int]]:
    """Returns the indices that are valid for all embeddings, by placeholder name.

    The server checks them before it runs the graph: an index out of range fails the request on a
    CPU, and makes a GPU unusable for the process.
    """
    found: dict[str, tuple[int, int]] = {}
    written = _written(graph)
    for node in graph.graph.nodes:
        if node.target not in _LOOKUPS:
            continue
        weight, indices = node.args[:2]
        name = _placeholder(indices, written)
        if name is not None:
            last = int(weight.meta["val"].shape[0]) - 1
            found[name] = (0, min(last, found.get(name, (0, last))[1]))
    return found


def limits_of_positions(graph: GraphModule) -> Iterator[tuple[sympy.Basic, Node]]:
    """Yields a condition for each embedding of the positions arange(n), n being symbolic: its size.

    Without it, a larger size would make an index out of range.
    """
    for node in graph.graph.nodes:
        if node.target not in _LOOKUPS:
            continue
        weight, indices = node.args[:2]
        source = _source(indices, set())
        if source.target in _POSITIONS:
            count = source.meta["val"].shape[0]
            if isinstance(count, torch.SymInt):
                yield sympy.Le(count.node.expr, int(weight.meta["val"].shape[0])), node


def _written(graph: GraphModule) -> set[Node]:
    """Returns nodes that an operator writes to, and their inputs, which may share memory."""
    written: set[Node] = set()
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        for argument, given in zip(schema.arguments, node.args) if schema is not None else ():
            if argument.alias_info is not None and argument.alias_info.is_write:
                changed = [each for each in _flat(given) if isinstance(each, Node)]
                while changed:
                    one = changed.pop()
                    if one not in written:
                        written.add(one)
                        changed += one.all_input_nodes
    return written


def _flat(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _source(node: Node, written: set[Node]) -> Node:
    """Returns the node that has the same values in another shape."""
    while node.op == "call_function" and node not in written:
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.name not in _SAME_VALUES:
            break
        node = node.args[0]
    return node


def _placeholder(node: Node, written: set[Node]) -> str | None:
    node = _source(node, written)
    value = node.meta.get("val")
    integer = isinstance(value, torch.Tensor) and not value.is_floating_point()
    looked_up = node.op == "placeholder" and node not in written
    return node.name if looked_up and integer else None


def frequency_note(weight: str) -> str:
    """Returns the note for users of an embedding with scale_grad_by_freq."""
    return (
        f"scale_grad_by_freq: the gradient of {weight} depends on index counts in the whole batch: "
        f"train on one replica only, without micro_batch"
    )


def script_frequency_notes(script: torch.jit.ScriptModule) -> list[str]:
    """Returns the note if forward uses an embedding with scale_grad_by_freq."""
    lookups = ("aten::embedding", "aten::embedding_bag")
    graph = script.inlined_graph
    nodes = (node for kind in lookups for node in graph.findAllNodes(kind, recurse=True))
    scaled = any(node.inputsAt(_place(node)).toIValue() for node in nodes)
    return [frequency_note("an embedding")] if scaled else []


def _place(node: torch._C.Node) -> int:
    names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
    return names.index("scale_grad_by_freq")
