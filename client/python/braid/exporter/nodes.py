"""Nodes that are added to a graph that has been traced."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.shape_prop import _extract_tensor_metadata


def call(module: GraphModule, replaced: Node, target: Any, *args: Any) -> Node:
    """Adds an operator that returns one tensor before `replaced`, in whose place it stands."""
    with module.graph.inserting_before(replaced):
        node = module.graph.call_function(target, args)
    # A partition goes by where a node was, and by what it gives.
    node.meta["partitioner_tag"] = replaced.meta.get("partitioner_tag")
    value = target(*map_arg(args, lambda each: each.meta["val"]))
    node.meta["val"] = value
    node.meta["tensor_meta"] = _extract_tensor_metadata(value)
    return node
