"""PyTorch's default dtype, which is a setting of the process.

On a server it is float32. The exporting process may use another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.passes.graph_utils import branches, insert_call

_aten = torch.ops.aten
_SERVER_DTYPE = torch.float32


def matches_server() -> bool:
    """Returns True if this process uses the server's default dtype."""
    return torch.get_default_dtype() == _SERVER_DTYPE


@contextmanager
def server_default() -> Iterator[None]:
    """Sets the server's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(_SERVER_DTYPE)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def errors_explained() -> Iterator[None]:
    """Adds a hint on the default dtype to errors, if it differs from the server's."""
    try:
        yield
    except Exception as error:
        if matches_server():
            raise
        raise ExportError(
            f"{export_errors.to_export_error(error)}; {describe_mismatch()}"
        ) from error


def describe_mismatch() -> str:
    """Describes the difference from the server's default dtype, with a remedy."""
    return (
        f"the default dtype is {torch.get_default_dtype()} here and {_SERVER_DTYPE} on a server: "
        f"specify dtypes in forward(), for example torch.arange(4, dtype=x.dtype)"
    )


def make_explicit(module: GraphModule) -> None:
    """Makes dtypes explicit that a graph would take from the process's default."""
    if matches_server():
        return
    for branch in branches(module).values():
        make_explicit(branch)
    for node in list(module.graph.nodes):
        if isinstance(node.target, OpOverload) and _is_of_default(node.meta.get("val")):
            tensors = [each for each in node.args if _is_tensor(each)]
            if not any(_is_tensor(each) for each in node.all_input_nodes):
                _name_dtype(node)
            elif torch.Tag.pointwise in node.target.tags and all(map(_is_integer, tensors)):
                _convert(module, node, tensors)
    module.recompile()


def _is_of_default(value: object) -> bool:
    default = torch.get_default_dtype()
    return isinstance(value, torch.Tensor) and value.dtype in (default, default.to_complex())


def _is_tensor(argument: object) -> bool:
    return isinstance(argument, Node) and isinstance(argument.meta.get("val"), torch.Tensor)


def _is_integer(tensor: Node) -> bool:
    dtype = tensor.meta["val"].dtype
    return not dtype.is_floating_point and not dtype.is_complex


def _name_dtype(node: Node) -> None:
    takes = any(each.name == "dtype" for each in node.target._schema.arguments)
    if takes and node.kwargs.get("dtype") is None:
        node.update_kwarg("dtype", node.meta["val"].dtype)


def _convert(module: GraphModule, node: Node, tensors: list[Node]) -> None:
    """Converts integer operands of an operator with a floating-point result, such as a division."""
    if node.target._schema.name == "aten::where":
        return  # Its condition must stay boolean.
    for tensor in tensors:
        converted = insert_call(
            module, node, _aten._to_copy.default, tensor, dtype=torch.get_default_dtype()
        )
        node.replace_input_with(tensor, converted)
