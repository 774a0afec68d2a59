"""Python's numbers where an operator takes a tensor: PyTorch makes tensors of them for a call from
Python, LibTorch's interpreter does not."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from braid._export import ExportError
from braid.exporter import lines, source
from braid.exporter.nodes import call

_aten = torch.ops.aten
# Of these the interpreter takes the overload for a number as `other`.
_TAKE_NUMBERS = (
    _aten.add.Tensor, _aten.div.Tensor, _aten.div.Tensor_mode, _aten.mul.Tensor, _aten.sub.Tensor,
)  # fmt: skip
_WITH_TENSORS = {
    _aten.add.Scalar: _aten.add.Tensor,
    _aten.div.Scalar: _aten.div.Tensor,
    _aten.mul.Scalar: _aten.mul.Tensor,
    _aten.sub.Scalar: _aten.sub.Tensor,
}
_NUMBERS = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)
_HALVES = (torch.bfloat16, torch.float16)


def put_tensors(module: GraphModule, node: Node) -> None:
    if not isinstance(node.target, OpOverload):
        return
    if node.target in _WITH_TENSORS and isinstance(node.args[1], complex):
        node.target = _WITH_TENSORS[node.target]
    for place, argument in enumerate(node.target._schema.arguments):
        if place >= len(node.args) or not isinstance(argument.type, torch.TensorType):
            continue
        number = _value(node.args[place])
        if isinstance(number, _NUMBERS) and not _is_taken(node, place, number):
            tensor = _tensor(module, node, node.args[place])
            node.update_arg(place, tensor)


def check_arguments(node: Node) -> None:
    """ExportError if what is given is not what the operator takes."""
    if not isinstance(node.target, OpOverload):
        return
    for place, argument in enumerate(node.target._schema.arguments):
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        number = _value(given)
        wants_tensor = isinstance(argument.type, torch.TensorType)
        wrong = wants_tensor and isinstance(number, _NUMBERS) and not _is_taken(node, place, number)
        if wrong or isinstance(number, complex):
            raise ExportError(
                f"forward gives {node.target} the number {number} as '{argument.name}', which the "
                f"server's interpreter does not take: give it a tensor" + source.at(lines.of(node))
            )


def _value(given: Any) -> Any:
    return given.meta.get("val") if isinstance(given, Node) else given


def _is_taken(node: Node, place: int, number: Any) -> bool:
    plain = isinstance(number, (int, float, torch.SymInt, torch.SymFloat))
    return node.target in _TAKE_NUMBERS and place == 1 and plain and not isinstance(number, bool)


def _tensor(module: GraphModule, node: Node, number: Any) -> Node:
    """Of no dims, and of a datatype with which the result's is the one that it was."""
    values = map(_value, (*node.args, *node.kwargs.values()))
    other = next((each for each in values if isinstance(each, torch.Tensor)), 0)
    with node.meta["val"].fake_mode:
        dtype = torch.result_type(other, _example(_value(number)))
        if dtype.is_complex:
            real, imaginary = (
                call(module, node, _aten.scalar_tensor.default, part, dtype=dtype.to_real())
                for part in (number.real, number.imag)
            )
            return call(module, node, _aten.complex.default, real, imaginary)
        if dtype in _HALVES and other.dim() > 0:
            dtype = torch.float32  # Numbers are not rounded to half precision first.
        return call(module, node, _aten.scalar_tensor.default, number, dtype=dtype)


def _example(number: Any) -> bool | int | float | complex:
    """A number of the same type."""
    kinds = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
    return kinds.get(type(number), number)
