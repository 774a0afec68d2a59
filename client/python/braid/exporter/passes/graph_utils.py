"""Helpers to read and edit traced graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.shape_prop import _extract_tensor_metadata

# The partitioner and error messages read these keys.
_KEPT = ("partitioner_tag", "seq_nr", "model_line")


def insert_call(
    module: GraphModule, replaced: Node, target: Any, *args: Any, **options: Any
) -> Node:
    """Inserts a call before `replaced`, and copies its metadata. Returns one tensor or number."""
    with module.graph.inserting_before(replaced):
        node = module.graph.call_function(target, args, options)
    node.meta |= {key: replaced.meta[key] for key in _KEPT if key in replaced.meta}
    value = target(*map_arg(args, lambda each: each.meta["val"]), **options)
    node.meta["val"] = value
    if isinstance(value, torch.Tensor):
        node.meta["tensor_meta"] = _extract_tensor_metadata(value)
    return node


def branches(module: GraphModule) -> dict[str, GraphModule]:
    """Returns the graphs that `torch.cond` selects from, by their attributes of `module`."""
    found = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(getattr(module, node.target), GraphModule):
            found[node.target] = getattr(module, node.target)
    return found


def placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def outputs(module: GraphModule) -> list[Any]:
    return list(module.graph.output_node().args[0])


def set_outputs(module: GraphModule, nodes: list[Node]) -> None:
    module.graph.output_node().args = (tuple(nodes),)
    module.graph.eliminate_dead_code()
    module.recompile()


def is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)
