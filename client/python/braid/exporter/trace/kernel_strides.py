"""Strides of traced tensors, as the kernels return them.

For permuted inputs, some of PyTorch's shape rules return other strides than the kernels, for
example for batch norm, layer norm and log_softmax. A trace then uses a view where the kernel's
result needs a copy, and draws random numbers in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

_Sizes = tuple[int, ...]
_aten = torch.ops.aten
# Operators whose rules match their kernels. Every linear layer passes them transposed weights.
_ALWAYS_CONTIGUOUS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default}


class KernelStrides(FakeTensorMode):
    """Runs the kernel to find its strides if an input or a result is permuted.

    The kernel runs once per operator and shapes, with values that any operator accepts.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: dict[Any, list[_Sizes | None]] = {}

    def dispatch(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
    ) -> Any:
        result = super().dispatch(func, types, args, kwargs)
        given = [*_tensors((args, kwargs))]
        made = [*_tensors(result)]
        if not _gives_new_tensors(func) or not any(map(_is_permuted, (*given, *made))):
            return result
        found = self._strides(func, args, kwargs, len(made))
        laid_out = {id(each): self._laid_out(each, strides) for each, strides in zip(made, found)}
        return pytree.tree_map_only(FakeTensor, lambda each: laid_out[id(each)], result)

    def _strides(self, func: OpOverload, args: Any, kwargs: Any, count: int) -> list[_Sizes | None]:
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        key = func, tuple(map(_described, flat)), str(spec)
        if key not in self._known:
            self._known[key] = _ask(func, flat, spec, count)
        return self._known[key]

    def _laid_out(self, fake: FakeTensor, strides: _Sizes | None) -> FakeTensor:
        sizes = _hints(fake.shape)
        if strides is None or not _differ(sizes, _hints(fake.stride()), strides):
            return fake
        wanted = _symbolic(fake.shape, sizes, strides)
        if wanted is None:
            return fake
        with self:
            return torch.empty_strided(fake.shape, wanted, dtype=fake.dtype, device=fake.device)


# PyTorch looks up rules of operators that take functions by the mode's class.
_cond = torch.ops.higher_order.cond
_cond.py_impl(KernelStrides)(_cond.python_key_table[FakeTensorMode])


def _ask(func: OpOverload, flat: list[Any], spec: Any, count: int) -> list[_Sizes | None]:
    """Returns the strides of each result, None if unknown."""
    with no_dispatch():
        try:
            args, kwargs = pytree.tree_unflatten([_example(each) for each in flat], spec)
            made = [*_tensors(func(*args, **kwargs))]
        except Exception:  # A kernel may reject the values with any error.
            made = []
    strides = [each.stride() if each.layout == torch.strided else None for each in made]
    return strides if len(made) == count else [None] * count


def _gives_new_tensors(func: Any) -> bool:
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return False
    if func in _ALWAYS_CONTIGUOUS:
        return False
    schema = func._schema
    return not schema.is_mutable and all(each.alias_info is None for each in schema.returns)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor))


def _is_permuted(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided:
        return False
    sizes, strides = _hints(tensor.shape), _hints(tensor.stride())
    return _differ(sizes, strides, make_contiguous_strides_for(sizes))


def _differ(sizes: _Sizes, one: _Sizes, other: _Sizes) -> bool:
    return any(size > 1 and mine != its for size, mine, its in zip(sizes, one, other))


def _hints(sizes: Sequence[Any]) -> _Sizes:
    """Returns the concrete sizes of the trace without adding a guard."""
    return tuple(each.node.hint if isinstance(each, torch.SymInt) else each for each in sizes)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, _hints(value.shape), _hints(value.stride())
    return repr(_example(value))


def _example(value: Any) -> Any:
    """Returns a real tensor or number with the sizes of the trace."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(
        _hints(value.shape), _hints(value.stride()), dtype=value.dtype, device=value.device
    )
    return made.zero_() if value.numel() == 0 or not value.is_floating_point() else made.fill_(0.5)


def _symbolic(shape: Sequence[Any], sizes: _Sizes, strides: _Sizes) -> list[Any] | None:
    """Returns symbolic strides in the same order of dims, or None for gaps or overlaps."""
    inwards = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))
    expected, known, wanted = 1, 1, [0] * len(sizes)
    for dim in reversed(inwards):
        if sizes[dim] > 1 and strides[dim] != expected:
            return None
        wanted[dim] = known
        expected, known = expected * sizes[dim], known * shape[dim]
    return wanted
