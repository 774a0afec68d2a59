"""Recomputation of parts of forward in backward, as in torch.utils.checkpoint.

A trace usually omits recomputation. It matters if it changes a buffer: a batch norm in a checkpoint
updates its running statistics in forward and again in backward.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from braid._export import ExportError
from braid.exporter import source
from braid.exporter.trace import node_lines

_aten = torch.ops.aten
_BATCH_NORM = _aten._native_batch_norm_legit_functional.default
# Indices of the running statistics among its results.
_RUNNING = {3, 4}


@contextmanager
def recorded() -> Iterator[None]:
    """Keeps recomputation in a trace."""
    hooks = "_disable_saved_tensors_hooks_during_tracing"
    with mock.patch.object(torch._dynamo.utils, hooks, nullcontext):
        yield


def merge(module: GraphModule) -> None:
    """Reuses forward's values instead of recomputing them, except for changed buffers.

    Raises ExportError if it cannot match a random operator in backward to one in forward.
    """
    known: dict[Any, Node] = {}
    drawn: dict[Any, list[Node]] = {}
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target == _BATCH_NORM and node.args[5] is True:
            _take_values(module, node, known)
        elif node.target == _aten.native_batch_norm_backward.default and node.args[7] is True:
            _take_first_running(node)
        key = node.target, repr(node.args), repr(sorted(node.kwargs.items()))
        if _is_random(node):
            if node.meta.get("partitioner_tag") != "is_backward":
                drawn.setdefault(key, []).append(node)
                continue
            same = _drawn_before(node, drawn.get(key, []))
        else:
            same = known.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    module.recompile()


def _take_values(module: GraphModule, node: Node, known: dict[Any, Node]) -> None:
    """Reuses the results of the first batch norm of the same batch, except running statistics."""
    values, settings = node.args[:3], node.args[7:]
    first = known.setdefault((_BATCH_NORM, repr((values, settings))), node)
    if first is node:
        return
    there = {element.args[1]: element for element in first.users}
    for element in list(node.users):
        place = element.args[1]
        if place in _RUNNING:
            continue
        if place not in there:
            with module.graph.inserting_after(first):
                there[place] = module.graph.node_copy(element, lambda _: first)
            there[place].meta["partitioner_tag"] = first.meta.get("partitioner_tag")
        element.replace_all_uses_with(there[place])


def _take_first_running(node: Node) -> None:
    """Passes forward's running statistics to backward, which ignores their values in training."""
    for place in (3, 4):
        given = node.args[place]
        while given.target is operator.getitem and given.meta["partitioner_tag"] == "is_backward":
            given = given.args[0].args[place]
        node.update_arg(place, given)


def _is_random(node: Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _drawn_before(node: Node, candidates: list[Node]) -> Node:
    if len(candidates) != 1:
        raise ExportError(
            f"backward reruns a part of forward, as torch.utils.checkpoint does, and changes "
            f"buffers; {node.target} draws random numbers there that cannot be distinguished "
            f"from others: move the random operator out of the checkpoint"
            + source.as_suffix(node_lines.line_of(node))
        )
    return candidates[0]
