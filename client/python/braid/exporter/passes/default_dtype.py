"""PyTorch's default dtype, which is the process's: the server's is float32, whatever it was where
the model was exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.passes.graph_utils import insert_call

_aten = torch.ops.aten
_SERVERS = torch.float32


def matches_server() -> bool:
    return torch.get_default_dtype() == _SERVERS


@contextmanager
def server_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(_SERVERS)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def errors_explained() -> Iterator[None]:
    """Says of what fails that the default may be why."""
    try:
        yield
    except Exception as error:
        if matches_server():
            raise
        raise ExportError(
            f"{export_errors.to_export_error(error)}; {describe_mismatch()}"
        ) from error


def describe_mismatch() -> str:
    return (
        f"the default dtype is {torch.get_default_dtype()} here and {_SERVERS} on a server: have "
        f"forward name the dtypes of what it makes, as in torch.arange(4, dtype=x.dtype)"
    )


def make_explicit(module: GraphModule) -> None:
    """Has a graph say the dtypes that it would take from the process."""
    if matches_server():
        return
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload) and _is_of_default(node.meta.get("val")):
            tensors = [each for each in node.args if _is_tensor(each)]
            if not any(_is_tensor(each) for each in node.all_input_nodes):
                _name_dtype(node)
            elif torch.Tag.pointwise in node.target.tags and all(map(_is_whole, tensors)):
                _convert(module, node, tensors)
    module.recompile()


def _is_of_default(value: object) -> bool:
    default = torch.get_default_dtype()
    return isinstance(value, torch.Tensor) and value.dtype in (default, default.to_complex())


def _is_tensor(argument: object) -> bool:
    return isinstance(argument, Node) and isinstance(argument.meta.get("val"), torch.Tensor)


def _is_whole(tensor: Node) -> bool:
    dtype = tensor.meta["val"].dtype
    return not dtype.is_floating_point and not dtype.is_complex


def _name_dtype(node: Node) -> None:
    takes = any(each.name == "dtype" for each in node.target._schema.arguments)
    if takes and node.kwargs.get("dtype") is None:
        node.update_kwarg("dtype", node.meta["val"].dtype)


def _convert(module: GraphModule, node: Node, tensors: list[Node]) -> None:
    """Operators of whole numbers that give others, as a division does, convert them first."""
    if node.target._schema.name == "aten::where":
        return  # Its condition is none of them.
    for tensor in tensors:
        converted = insert_call(
            module, node, _aten._to_copy.default, tensor, dtype=torch.get_default_dtype()
        )
        node.replace_input_with(tensor, converted)
