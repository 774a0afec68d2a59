"""Pipeline stages: chains of submodules that together equal the whole model."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter import export_errors, source
from braid.exporter.model import rows, run_context
from braid.exporter.model.run_context import autocast
from braid.exporter.model.signature import flatten_outputs, positional_names
from braid.exporter.model.sizes import Sizes, Symbol, VariableDim, VariableSizes, sizes_suffix
from braid.exporter.model.state import (
    StateEntry,
    contiguous_copy,
    reparametrized,
    run_state,
    state_entries,
)
from braid.exporter.trace.joint_graph import Part

_BATCHES = (2, 7)
_SEED = 21


class StageMismatch(ExportError):
    """The stages do not compute the same as the whole model."""


def make_parts(whole: Part, chains: list[list[str]], device: torch.device) -> list[Part]:
    """Returns each submodule of the chains once, with example inputs.

    Raises StageMismatch if a chain does not equal the whole model.
    """
    parts: dict[str, Part] = {}
    for chain in chains:
        for part in _chain(whole, chain, device):
            before = parts.setdefault(part.path, part)
            before.input_gradients |= part.input_gradients
    return list(parts.values())


def _chain(whole: Part, chain: list[str], device: torch.device) -> list[Part]:
    label = " → ".join(chain)
    modules = [whole.module.get_submodule(path) for path in chain]
    for batch, sizes in itertools.product(_BATCHES, whole.sizes):
        for training in (False, True):
            _check_whole(whole, modules, batch, sizes, training, label, device)
    at = [(sizes, list(whole.at(sizes).values())) for sizes in [*whole.sizes, whole.traced_sizes]]
    parts: list[Part] = []
    for path, module in zip(chain, modules):
        given = at[0][1]
        names = positional_names(module, len(given), path)
        entries = _entries(whole, module, path)
        inside = set(module.modules())
        evaluated = tuple(each for each in whole.evaluated if each in inside)
        part = Part(
            path,
            module,
            entries,
            dict(zip(names, given)),
            _variable_dims(whole, names, at),
            whole.sizes,
            whole.traced_sizes,
            [(sizes, dict(zip(names, tensors))) for sizes, tensors in at],
            evaluated,
            bool(parts),
        )
        parts.append(part)
        with torch.no_grad():
            at = [
                (sizes, [contiguous_copy(e) for e in _run([module], whole, each, False, device)])
                for sizes, each in at
            ]
        for tensor in at[0][1]:
            if tensor.dim() == 0 or tensor.shape[0] != next(iter(whole.inputs.values())).shape[0]:
                raise ExportError(
                    f"stage '{path}' returns a tensor of shape {list(tensor.shape)} "
                    f"(expected the batch as dim 0)"
                )
    return parts


def _variable_dims(
    whole: Part, names: list[str], at: list[tuple[Sizes, list[torch.Tensor]]]
) -> VariableSizes:
    """Returns the dims of a stage's inputs that differ between sizes of the model.

    Dims that are always equal share a symbol, named like that of the model if it has the same size.
    at: the stage's inputs for sizes of the model.
    """
    known = {tuple(sizes[name] for sizes, _ in at): name for name in whole.variable.symbols}
    symbols: dict[str, Symbol] = {}
    dims: dict[str, dict[int, VariableDim]] = {}
    for place, name in enumerate(names):
        shapes = [tensors[place].shape for _, tensors in at]
        for dim, seen in enumerate(zip(*shapes)):
            if dim == 0 or len(set(seen)) == 1:
                continue
            symbol = known.setdefault(seen, f"size{len(known)}")
            symbols[symbol] = whole.variable.symbols.get(symbol, Symbol(symbol))
            dims.setdefault(name, {})[dim] = VariableDim(symbol)
    return VariableSizes(symbols, dims)


def infer_datatypes(
    parts: list[Part], chains: list[list[str]], precision: torch.dtype, device: torch.device
) -> None:
    """Finds the dtypes of stage inputs under autocast, which may differ from those of the examples.

    parts: the whole model, then the stages.
    """
    whole, *stages = parts
    by_path = {part.path: part for part in stages}
    for chain in chains:
        for training in (False, True):
            given = list(whole.inputs.values())
            for path in chain:
                part = by_path[path]
                _set_datatypes(part, given, training, precision)
                with torch.no_grad():
                    given = _run([part.module], whole, given, training, device, precision)


def _set_datatypes(
    part: Part, given: list[torch.Tensor], training: bool, precision: torch.dtype
) -> None:
    dtypes = {name: each.dtype for name, each in zip(part.inputs, given)}
    if part.datatypes.setdefault((training, precision), dtypes) != dtypes:
        raise ExportError(f"stage '{part.path}' receives different dtypes in different chains")


def check_paths(module: nn.Module, chains: list[list[str]]) -> None:
    """Raises ValueError for a path that is not a submodule."""
    for chain in chains:
        if not chain:
            raise ValueError("stages: an empty chain (expected paths of submodules)")
        for path in chain:
            _check_path(module, path)


def _check_path(module: nn.Module, path: str) -> None:
    try:
        module.get_submodule(path)
    except AttributeError:
        children = ", ".join(name for name, _ in module.named_children()) or "none"
        raise ValueError(f"stages: no submodule '{path}' (the model has {children})") from None


def _entries(whole: Part, module: nn.Module, path: str) -> list[StateEntry]:
    """Returns the submodule's state, named as in the whole model."""
    return [
        StateEntry(
            f"{path}.{entry.name}",
            entry.name,
            entry.kind,
            entry.trainable,
            entry.tensor,
            None if entry.tied_to is None else f"{path}.{entry.tied_to}",
        )
        for entry in state_entries(module)
    ]


def _check_whole(
    whole: Part,
    modules: list[nn.Module],
    batch: int,
    sizes: Sizes,
    training: bool,
    label: str,
    device: torch.device,
) -> None:
    mode = "training" if training else "evaluation"

    def run(given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return _run([whole.module], whole, list(given.values()), training, device)

    try:
        with torch.no_grad():
            given, expected = rows.run_varied(whole.at(sizes), batch, run)
            got = _run(modules, whole, list(given.values()), training, device)
    except ExportError:
        raise
    except Exception as error:
        raise StageMismatch(
            f"stages: {label} does not match the whole model: running the stages in {mode} fails: "
            + export_errors.describe(error)
            + source.as_suffix(source.line_of_error(error))
        ) from error
    if len(expected) != len(got):
        raise StageMismatch(
            f"stages: {label} does not match the whole model: the stages return {len(got)} "
            f"tensors, the model returns {len(expected)}"
        )
    for place, (one, other) in enumerate(zip(expected, got)):
        if one.shape != other.shape or not torch.allclose(one, other, equal_nan=True):
            raise StageMismatch(
                f"stages: {label} does not match the whole model: output {place} differs in {mode} "
                f"for a batch of {batch}{sizes_suffix(sizes)}"
            )


def _run(
    modules: list[nn.Module],
    whole: Part,
    given: list[torch.Tensor],
    training: bool,
    device: torch.device,
    precision: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Runs the modules in sequence and returns the outputs of the last one."""
    state = run_state(whole.entries)
    flowing: list[Any] = list(given)
    with run_context.seeded(device, _SEED), whole.in_mode(training):
        with reparametrized(whole.module, whole.entries, state), autocast(device, precision):
            for module in modules:
                result = module(*flowing)
                flowing = flatten_outputs(result)[1]
    return flowing
