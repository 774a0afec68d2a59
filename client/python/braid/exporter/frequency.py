"""Embeddings with scale_grad_by_freq, whose gradients need the whole batch."""

from __future__ import annotations

import torch


def note(weight: str) -> str:
    return (
        f"scale_grad_by_freq: the gradient of {weight} is divided by how often each index occurs "
        f"in the whole batch: it can be trained on one replica only, without micro_batch"
    )


def notes_of_script(script: torch.jit.ScriptModule) -> list[str]:
    """The note, if forward looks up an embedding that has it."""
    lookups = ("aten::embedding", "aten::embedding_bag")
    graph = script.inlined_graph
    nodes = (node for kind in lookups for node in graph.findAllNodes(kind, recurse=True))
    scaled = any(node.inputsAt(_place(node)).toIValue() for node in nodes)
    return [note("an embedding")] if scaled else []


def _place(node: torch._C.Node) -> int:
    names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
    return names.index("scale_grad_by_freq")
