"""Parameters and buffers of a module, and ways to replace and restore them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter.model.signature import DATATYPES


@dataclass(frozen=True)
class StateEntry:
    """Parameter or buffer under one of its names.

    name: name in the whole model.
    place: name in the module that runs, which may be a submodule.
    tied_to: first name of the same tensor, or None if this is the first.
    """

    name: str
    place: str
    kind: str
    trainable: bool
    tensor: torch.Tensor
    tied_to: str | None

    def copy(self) -> torch.Tensor:
        return contiguous_copy(self.tensor)

    def contiguous(self) -> torch.Tensor:
        """Returns the tensor if it has the layout of `copy()`, else a copy."""
        tensor = self.tensor.detach()
        layout = torch.empty(tensor.shape, device="meta").stride()
        return tensor if tensor.stride() == layout else contiguous_copy(tensor)


def run_state(entries: list[StateEntry], training: bool = False) -> dict[str, torch.Tensor]:
    """Returns untied tensors to run a module with, by name, in the layout that a server uses.

    Buffers are copies, because forward may write to them. Parameters may share the module's memory.

    training: trainable parameters require gradients.
    """
    state = {}
    for entry in entries:
        if entry.tied_to is None:
            shared = entry.kind == "parameter" and not entry.tensor.is_inference()
            tensor = entry.contiguous() if shared else entry.copy()
            state[entry.name] = tensor.requires_grad_(training and entry.trainable)
    return state


def contiguous_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a detached contiguous copy, the layout that a server uses.

    Unlike `contiguous()`, normalizes strides of dims of size 1, which convolutions read.
    """
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def state_entries(module: nn.Module) -> list[StateEntry]:
    """Returns all parameters and buffers in state_dict order.

    Includes non-persistent buffers and every name of a tied tensor.
    """
    entries: list[StateEntry] = []
    first: dict[int, str] = {}
    for path, submodule in module.named_modules(remove_duplicate=False):
        for kind, tensors in (("parameter", submodule._parameters), ("buffer", submodule._buffers)):
            for leaf, tensor in tensors.items():
                if tensor is None:
                    continue
                name = f"{path}.{leaf}" if path else leaf
                tied_to = first.get(id(tensor))
                first.setdefault(id(tensor), name)
                trainable = kind == "parameter" and tensor.requires_grad
                entries.append(StateEntry(name, name, kind, trainable, tensor, tied_to))
    _check_tensors(entries)
    return entries


def _check_tensors(entries: list[StateEntry]) -> None:
    owners: dict[int, str] = {}
    for entry in entries:
        if entry.tied_to is not None:
            continue
        if nn.parameter.is_lazy(entry.tensor):
            raise ExportError(
                f"{entry.kind} '{entry.name}' has no shape yet: run the module on a batch first"
            )
        if entry.tensor.layout != torch.strided or entry.tensor.is_quantized:
            raise ExportError(
                f"{entry.kind} '{entry.name}' is sparse or quantized (expected a dense tensor)"
            )
        if entry.tensor.dtype not in DATATYPES:
            raise ExportError(
                f"{entry.kind} '{entry.name}' has the unsupported dtype {entry.tensor.dtype}"
            )
        if entry.tensor.numel() == 0 or entry.tensor.is_meta:
            continue
        owner = owners.setdefault(entry.tensor.untyped_storage().data_ptr(), entry.name)
        if owner != entry.name:
            raise ExportError(
                f"'{owner}' and '{entry.name}' are different tensors that share memory: "
                f"register one tensor under both names, or copy it"
            )


def device_of(module: nn.Module) -> torch.device:
    """Returns the device of all parameters and buffers, or the CPU if there are none.

    Raises ExportError if they are on several devices.
    """
    places: dict[torch.device, str] = {}
    for entry in state_entries(module):
        places.setdefault(entry.tensor.device, entry.name)
    if len(places) > 1:
        where = ", ".join(f"'{name}' on {device}" for device, name in places.items())
        raise ExportError(f"the module is on several devices: {where} (expected one device)")
    device = next(iter(places), torch.device("cpu"))
    if device.type not in ("cpu", "cuda"):
        raise ExportError(f"the module is on {device} (expected the CPU or a CUDA device)")
    return device


@contextmanager
def bindings_restored(module: nn.Module) -> Iterator[None]:
    """Restores which objects each submodule's attributes and tables refer to, and its mode."""
    # TorchScript modules keep their state elsewhere.
    python = [each for each in module.modules() if not isinstance(each, torch.jit.ScriptModule)]
    before = [(each, dict(vars(each))) for each in python]
    tables = [
        (table, dict(table))
        for each, _ in before
        for table in (each._parameters, each._buffers, each._modules)
    ]
    try:
        yield
    finally:
        for each, attributes in before:
            vars(each).clear()
            vars(each).update(attributes)
        for table, tensors in tables:
            table.clear()
            table.update(tensors)


# Copies that enclosing `values_restored` hold, by the tensor's id. They save large models a copy.
_copies: ContextVar[Mapping[int, torch.Tensor]] = ContextVar("braid_copies", default={})


@contextmanager
def values_restored(module: nn.Module) -> Iterator[None]:
    """Restores the values and gradients of parameters and buffers."""
    outer = _copies.get()
    copies, before = dict(outer), []
    for entry in state_entries(module):
        if entry.tied_to is None:
            tensor, was = entry.tensor, outer.get(id(entry.tensor))
            if was is None or not bitwise_equal(tensor, was):
                was = tensor.detach().clone()
            copies[id(tensor)] = was
            before.append(tensor_restorer(tensor, was))
    token = _copies.set(copies)
    try:
        yield
    finally:
        _copies.reset(token)
        for restore in before:
            restore()


def tensor_restorer(tensor: torch.Tensor, was: torch.Tensor | None = None) -> Callable[[], None]:
    """Returns a function that restores the current value, memory and gradient of `tensor`.

    The function writes only what changed, so version counters and views stay valid.

    was: a copy of the current value, or None.
    """
    memory, was = tensor.detach(), tensor.detach().clone() if was is None else was
    trained, gradient = tensor.requires_grad, tensor.grad if tensor.is_leaf else None
    restore_gradient = tensor_restorer(gradient) if gradient is not None else None

    def restore() -> None:
        with torch.no_grad():
            if not _is_same_memory(tensor, memory):
                tensor.data = memory
            if not bitwise_equal(tensor, was):
                tensor.copy_(was)
            if not tensor.is_leaf:
                return
            if tensor.requires_grad != trained:
                tensor.requires_grad_(trained)
            if tensor.grad is not gradient:
                tensor.grad = gradient
            if restore_gradient is not None:
                restore_gradient()

    return restore


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.dtype, one.device, one.data_ptr(), one.shape, one.stride()) == (
        other.dtype,
        other.device,
        other.data_ptr(),
        other.shape,
        other.stride(),
    )


def bitwise_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compares dtype, shape and bits. NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.reshape(-1).view(torch.uint8)


@contextmanager
def reparametrized(
    module: nn.Module, entries: list[StateEntry], tensors: Mapping[str, torch.Tensor]
):
    """Replaces the module's tensors by `tensors`, keyed by untied name, for one forward pass."""
    with bindings_restored(module), tensors_placed(module, entries, tensors):
        yield


@contextmanager
def tensors_placed(
    module: nn.Module, entries: list[StateEntry], tensors: Mapping[str, torch.Tensor]
):
    """Replaces the tensors like `reparametrized`, without restoring them on exit.

    If forward assigns a new tensor to a buffer, its value is copied into the replacement. The
    replacements stay in place because backward may rerun parts of forward. The caller must use
    `bindings_restored`.
    """
    places = [(entry, *_table(module, entry)) for entry in entries]
    for entry, table, leaf in places:
        table[leaf] = tensors[entry.tied_to or entry.name]
    _refresh_flat_weights(module)
    yield
    for entry, table, leaf in places:
        given, now = tensors[entry.tied_to or entry.name], table.get(leaf)
        if now is not given:
            _take_back(entry, given, now)
            table[leaf] = given


def _table(module: nn.Module, entry: StateEntry) -> tuple[dict, str]:
    path, _, leaf = entry.place.rpartition(".")
    owner = module.get_submodule(path)
    return (owner._parameters if entry.kind == "parameter" else owner._buffers), leaf


def current_tensor(module: nn.Module, entry: StateEntry) -> torch.Tensor | None:
    """Returns the tensor that the module currently holds for `entry`, if any."""
    table, leaf = _table(module, entry)
    return table.get(leaf)


def _refresh_flat_weights(module: nn.Module) -> None:
    # Recurrent layers keep a separate list of their parameters.
    for each in module.modules():
        if isinstance(each, nn.RNNBase):
            each._flat_weights = [getattr(each, name, None) for name in each._flat_weights_names]


def _take_back(entry: StateEntry, given: torch.Tensor, now: torch.Tensor | None) -> None:
    if entry.kind == "parameter":
        raise ExportError(f"forward() assigns a new tensor to the parameter '{entry.name}'")
    if now is None or now.shape != given.shape or now.dtype != given.dtype:
        became = "None" if now is None else f"{now.dtype} of shape {list(now.shape)}"
        raise ExportError(
            f"forward() changes the buffer '{entry.name}' from {given.dtype} of shape "
            f"{list(given.shape)} to {became}"
        )
    with torch.no_grad():
        given.copy_(now)
