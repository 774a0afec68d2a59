"""Checks of the operators of an eager run, which can name the model's line."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from braid._export import ExportError
from braid.exporter import export_errors, source
from braid.exporter.trace import recurrent_operators

_Described = Iterable[tuple[str, torch.Tensor]]

# Random operators without a generator argument that draw through an operator that has one. The CPU
# attention kernel has no dropout.
_DRAW_THROUGH_OTHERS = {
    "_scaled_dot_product_flash_attention_for_cpu",
    "alpha_dropout",
    "dropout",
    "feature_alpha_dropout",
    "feature_dropout",
    "gru",
    "lstm",
    "native_dropout",
    "rand_like",
    "randint_like",
    "randn_like",
    "rnn_relu",
    "rnn_tanh",
    "scaled_dot_product_attention",
}


# Functions of numbers that torch.export can write and the server can compute. `getitem` selects one
# result of an operator.
_ARITHMETIC = {
    math.trunc, operator.add, operator.and_, operator.eq, operator.floordiv, operator.ge,
    operator.getitem, operator.gt, operator.le, operator.lshift, operator.lt, operator.mod,
    operator.mul, operator.ne, operator.neg, operator.or_, operator.pos, operator.pow,
    operator.rshift, operator.sub, operator.truediv, torch.sym_float, torch.sym_int, torch.sym_ite,
    torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sqrt,
}  # fmt: skip
_RESHAPING = ("aten::resize_", "aten::resize_as_", "aten::set_")


class OperatorCheck(TorchDispatchMode):
    """Rejects unsupported operators and writes during a run.

    Rejected are operators of other libraries, unseedable random operators, writes to `fixed`,
    reshaping of `buffers`, and any use of `replaced`, the tensors that the run substituted. All
    three are pairs of a description, such as "the input 'x'", and a tensor.
    """

    supports_higher_order_operators = True

    def __init__(
        self, device: torch.device, fixed: _Described, buffers: _Described, replaced: _Described
    ) -> None:
        super().__init__()
        self._device = device
        self._fixed = _by_memory(fixed)
        self._buffers = _by_memory(buffers)
        self._replaced = _by_memory(replaced)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check_operator(func, self._device, lambda: source.as_suffix(source.current_line()))
        self._check_registered(args, kwargs)
        if isinstance(func, OpOverload):
            self._check_writes(func, args, kwargs)
        return func(*args, **kwargs)

    def _check_registered(self, args: tuple, kwargs: dict) -> None:
        """Rejects tensors that forward() reaches other than by name, which would be constants."""
        for tensor in pytree.tree_leaves((args, kwargs)):
            if not isinstance(tensor, torch.Tensor):
                continue
            subject = self._replaced.get(_memory(tensor)) if tensor.numel() else None
            if subject is not None:
                raise ExportError(
                    f"forward() uses {subject} other than by its name in the module, for example "
                    f"from a list or closure: use the attribute, or a ParameterList or ModuleList"
                    + source.as_suffix(source.current_line())
                )
            if isinstance(tensor, nn.Parameter):
                raise ExportError(
                    f"forward() uses an unregistered parameter of shape {list(tensor.shape)}, for "
                    f"example from a list: use register_parameter, or a ParameterList or ModuleList"
                    + source.as_suffix(source.current_line())
                )

    def _check_writes(self, func: OpOverload, args: tuple, kwargs: dict) -> None:
        if not func._schema.is_mutable:
            return
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in pytree.tree_leaves(given):
                if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
                    continue
                if subject := self._fixed.get(_memory(tensor)):
                    does = f"writes to {subject}"
                elif (subject := self._buffers.get(_memory(tensor))) and _name(func) in _RESHAPING:
                    does = f"resizes {subject} in place"
                else:
                    continue
                raise ExportError(
                    f"forward() {does} ({_name(func)}), which a package does not support"
                    + source.as_suffix(source.current_line())
                )


def _by_memory(tensors: _Described) -> dict[int, str]:
    return {_memory(tensor): subject for subject, tensor in tensors if tensor.numel()}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def check_operator(func: Any, device: torch.device, line: Callable[[], str]) -> None:
    """Raises ExportError if a server cannot run `func`. The message ends with `line()`."""
    if func in _ARITHMETIC:
        return
    if func is torch.ops.higher_order.cond:
        return  # The trace contains the operators of both branches.
    if isinstance(func, HigherOrderOperator):
        raise export_errors.higher_order_error(func, "exported pairs do", line())
    if not isinstance(func, OpOverload):
        raise ExportError(
            f"forward() calls {getattr(func, '__name__', type(func).__name__)} on the number of "
            f"rows, which a package does not support" + line()
        )
    if func.namespace == recurrent_operators.NAMESPACE:
        return
    if func.namespace not in ("aten", "prim", "prims"):
        raise ExportError(
            f"the operator {_name(func)} is not part of LibTorch, so the server does not have it"
            + line()
        )
    # On a GPU, all random operators use the device's generator, which the server seeds.
    if torch.Tag.nondeterministic_seeded not in func.tags or device.type == "cuda":
        return
    name = func._schema.name.partition("::")[2]
    if name not in _DRAW_THROUGH_OTHERS and not _takes_generator(name):
        raise ExportError(
            f"the random operator {_name(func)} does not use a generator that the server can seed "
            f"per replica and step" + line()
        )


def _takes_generator(name: str) -> bool:
    packet = getattr(torch.ops.aten, name)
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    return any("Generator" in str(each.type) for schema in schemas for each in schema.arguments)


def _name(func: OpOverload) -> str:
    return func._schema.name
