"""Source lines of the nodes of a trace."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

from braid.exporter import source

_KEY = "model_line"


@contextmanager
def recorded(outermost: str) -> Iterator[None]:
    """Stores the model's line in each node of a trace. outermost: file that calls the model."""
    create = PythonKeyTracer.create_node

    def create_node(self: Any, *args: Any, **kwargs: Any) -> Node:
        node = create(self, *args, **kwargs)
        node.meta[_KEY] = source.model_frame(sys._getframe(1), outermost)
        return node

    with mock.patch.object(PythonKeyTracer, "create_node", create_node):
        yield


def copy_to_backward(module: GraphModule) -> None:
    """Copies the line of each forward node to the backward nodes that differentiate it."""
    known: dict[int, traceback.FrameSummary] = {}
    for node in module.graph.nodes:
        number = node.meta.get("seq_nr")
        if node.meta.get(_KEY) is not None:
            known.setdefault(number, node.meta[_KEY])
        elif number is not None:
            node.meta[_KEY] = known.get(number)


def line_of(node: Node) -> str:
    """Returns the line of a node, or an empty string if unknown."""
    frame = node.meta.get(_KEY)
    return source.innermost_line([frame]) if frame is not None else ""
