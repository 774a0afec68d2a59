"""Strides of a trace's tensors as the kernels return them.

PyTorch's rules for shapes lay some results out otherwise than the kernels do where an input is
permuted, as batch norm's, layer norm's and log_softmax's do. A trace then has a view where the
kernel's result needs a copy, and draws random numbers in another order.
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
# Their rules and kernels agree. Transposed weights are among their inputs in every linear layer.
_ALWAYS_CONTIGUOUS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default}


class KernelStrides(FakeTensorMode):
    """Asks the kernel where a permuted tensor is among an operator's inputs or results.

    The kernel runs once for the sizes of the trace, with values that any operator takes.
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


def _ask(func: OpOverload, flat: list[Any], spec: Any, count: int) -> list[_Sizes | None]:
    """The strides of each result; None of those that are not known."""
    with no_dispatch():
        try:
            args, kwargs = pytree.tree_unflatten([_example(each) for each in flat], spec)
            made = [*_tensors(func(*args, **kwargs))]
        except Exception:  # Whatever a kernel says to values that are no model's.
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
    """Concrete sizes of the trace, without adding a guard."""
    return tuple(each.node.hint if isinstance(each, torch.SymInt) else each for each in sizes)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.device, _hints(value.shape), _hints(value.stride())
    return repr(_example(value))


def _example(value: Any) -> Any:
    """A tensor, or number, of the trace's sizes."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(
        _hints(value.shape), _hints(value.stride()), dtype=value.dtype, device=value.device
    )
    return made.zero_() if value.numel() == 0 or not value.is_floating_point() else made.fill_(0.5)


def _symbolic(shape: Sequence[Any], sizes: _Sizes, strides: _Sizes) -> list[Any] | None:
    """Strides in the same order of dims; None if the tensor has gaps or overlaps."""
    inwards = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], dim))
    expected, known, wanted = 1, 1, [0] * len(sizes)
    for dim in reversed(inwards):
        if sizes[dim] > 1 and strides[dim] != expected:
            return None
        wanted[dim] = known
        expected, known = expected * sizes[dim], known * shape[dim]
    return wanted
