"""Snapshots of a module's state, to detect changes and to undo them.

An attribute snapshot covers attributes that are not parameters, buffers or submodules: numbers,
strings, tensors, arrays, random generators, and lists, tuples, dicts and sets of them. It ignores
other objects.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from braid.exporter.model.state import (
    bindings_restored,
    bitwise_equal,
    tensor_restorer,
    values_restored,
)

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Tables of nn.Module, and the parameter list of recurrent layers.
_REGISTERED = {"_parameters", "_buffers", "_modules", "_flat_weights", "training"}


@dataclass(frozen=True)
class _Snapshot:
    """Recorded value: `content` for comparison, `restore` to write it back into the object."""

    kind: Any
    content: Any
    restore: Callable[[], None]


class AttributeSnapshot:
    """Contents of a module's attributes, and those of its submodules, at one moment."""

    def __init__(self, module: nn.Module) -> None:
        # Skips registered tensors and modules: state.py compares and restores them.
        seen = {id(each) for each in module.modules()}
        for tensors in (module.parameters(), module.buffers()):
            seen.update(map(id, tensors))
        self._snapshot = {
            f"{path}.{name}" if path else name: _snapshot(value, seen)
            for path, each in module.named_modules()
            if not isinstance(each, torch.jit.ScriptModule)
            for name, value in vars(each).items()
            if name not in _REGISTERED
        }

    def changed(self, other: AttributeSnapshot) -> list[str]:
        """Returns the names of attributes whose content differs in `other`."""
        names = dict.fromkeys((*self._snapshot, *other._snapshot))
        return [
            name for name in names if not _same(self._snapshot.get(name), other._snapshot.get(name))
        ]

    def restore(self) -> None:
        for snapshot in self._snapshot.values():
            snapshot.restore()


@contextmanager
def attributes_restored(module: nn.Module) -> Iterator[None]:
    """Restores the contents of all attributes on exit."""
    before = AttributeSnapshot(module)
    try:
        yield
    finally:
        before.restore()


def _snapshot(value: Any, seen: set[int]) -> _Snapshot:
    if isinstance(value, _PLAIN):
        return _Snapshot(type(value), value, _nothing)
    if id(value) in seen:
        return _UNKNOWN
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return _snapshot_tensor(value)
    if isinstance(value, (list, tuple, dict, set, deque)):
        return _snapshot_elements(value, seen)
    if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
        return _snapshot_elements(vars(value), seen)  # Unregistered module, for example in a list.
    return _snapshot_state(value)


def _snapshot_tensor(tensor: torch.Tensor) -> _Snapshot:
    if nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_quantized:
        return _UNKNOWN
    return _Snapshot(torch.Tensor, tensor.detach().clone(), tensor_restorer(tensor))


def _snapshot_elements(value: Any, seen: set[int]) -> _Snapshot:
    keys, elements = _elements(value)
    inner = [_snapshot(each, seen) for each in elements]
    content = set(value) if isinstance(value, set) else (keys, inner)

    def restore() -> None:
        now_keys, now = _elements(value)
        if now_keys != keys or [*map(id, now)] != [*map(id, elements)]:
            value.clear()
            add = value.extend if isinstance(value, (list, deque)) else value.update
            add(elements if keys is None else zip(keys, elements))
        for each in inner:
            each.restore()

    return _Snapshot(type(value), content, restore)


def _elements(value: Any) -> tuple[list[Any] | None, list[Any]]:
    """Returns the keys, or None unless `value` is a dict, and the values."""
    if isinstance(value, dict):
        return list(value), list(value.values())
    return None, list(value)


def _snapshot_state(value: Any) -> _Snapshot:
    """Records a random generator or a NumPy array."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, random.Random):
        state = value.getstate()
        return _Snapshot(type(value), state, lambda: value.setstate(state))
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return _Snapshot(type(value), state, lambda: value.set_state(state))
    if numpy is not None and isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        state = bits.state
        return _Snapshot(type(value), repr(state), lambda: setattr(bits, "state", state))
    if numpy is not None and isinstance(value, numpy.ndarray):
        array = value.copy()
        return _Snapshot(type(value), array.tolist(), lambda: numpy.copyto(value, array))
    return _UNKNOWN


def _nothing() -> None:
    pass


_UNKNOWN = _Snapshot(None, None, _nothing)


def _same(one: _Snapshot | None, other: _Snapshot | None) -> bool:
    if one is None or other is None or one.kind is not other.kind:
        return False
    if isinstance(one.content, torch.Tensor):
        return bitwise_equal(one.content, other.content)
    if isinstance(one.content, tuple) and one.kind is not random.Random:
        (keys, inner), (other_keys, others) = one.content, other.content
        return keys == other_keys and len(inner) == len(others) and all(map(_same, inner, others))
    return one.content == other.content or one.content != one.content


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restores the module and the shared random generators of Python and NumPy on every exit.

    Covers parameters, buffers, attributes and modes.
    """
    with bindings_restored(module), values_restored(module), attributes_restored(module):
        with _generators_restored():
            yield


@contextmanager
def _generators_restored() -> Iterator[None]:
    drawn = random.getstate()
    numpy = sys.modules.get("numpy")
    drawn_by_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(drawn)
        if numpy is not None:
            numpy.random.set_state(drawn_by_numpy)
