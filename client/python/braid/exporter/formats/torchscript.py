"""Export as TorchScript: scripted, or traced if scripting fails."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from braid._export import ExportError
from braid.exporter import export_errors, progress, source
from braid.exporter.checks import hooks
from braid.exporter.checks.repeatability import check_evaluation_is_repeatable
from braid.exporter.formats import config
from braid.exporter.formats.config import Batching
from braid.exporter.model import rows, run_context
from braid.exporter.model.batch_dims import BatchDims
from braid.exporter.model.run_context import in_mode
from braid.exporter.model.signature import (
    DATATYPES,
    call,
    check_batch_dim,
    flatten_outputs,
    split_arguments,
)
from braid.exporter.model.sizes import Sizes, VariableSizes, sizes_suffix
from braid.exporter.model.snapshot import restored
from braid.exporter.model.state import bitwise_equal, device_of
from braid.exporter.passes import default_dtype, embeddings

BATCHES = (1, 2, 7, 33)
_SEED = 22


@dataclass(frozen=True)
class Script:
    """Written TorchScript module.

    reason: why it was traced, and the consequences; empty if it was scripted.
    notes: on training.
    """

    inputs: list[config.Tensor]
    outputs: list[config.Tensor]
    reason: str
    notes: list[str]


class _Loaded:
    """Written module, loaded and run as in a server.

    A second instance runs under the caller's default dtype, if that differs from the server's: a
    script evaluates constant expressions in its first run and keeps the results.
    """

    def __init__(self, path: Path, device: torch.device, batch_dims: BatchDims) -> None:
        self._device = device
        self._batch_dims = batch_dims
        self._script = torch.jit.load(str(path), map_location=device)
        self._here = None
        if not default_dtype.matches_server():
            self._here = torch.jit.load(str(path), map_location=device)

    def run(
        self, given: dict[str, torch.Tensor], training: bool, names: list[str]
    ) -> list[torch.Tensor]:
        """Runs the module, with the batch at dim 0 of inputs and outputs. names: of the outputs.

        Raises ExportError if the caller's default dtype changes the result.
        """
        with default_dtype.errors_explained(), default_dtype.server_default():
            outputs = self._run(self._script, given, training, names)
        if self._here is None:
            return outputs
        here = self._run(self._here, given, training, names)
        if not all(map(bitwise_equal, outputs, here)):
            raise ExportError(
                f"TorchScript would compute different results: {default_dtype.describe_mismatch()}"
            )
        return outputs

    def _run(
        self, script: Any, given: dict[str, torch.Tensor], training: bool, names: list[str]
    ) -> list[torch.Tensor]:
        script.train(training)
        with run_context.seeded(self._device, _SEED):
            outputs = _run(script, self._batch_dims.from_front(given), [])[1]
        if len(outputs) != len(names):
            return outputs  # The comparison reports it.
        return [self._batch_dims.move_to_front(*each) for each in zip(names, outputs)]


class _Renormalization(TorchDispatchMode):
    """Detects renormalization of embeddings, which `torch.jit.script` removes as dead code.

    Rejects operators that take Python functions: a trace would record one branch.
    """

    supports_higher_order_operators = True
    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            raise export_errors.higher_order_error(
                func, "TorchScript does", source.as_suffix(source.current_line())
            )
        self.seen |= func is torch.ops.aten.embedding_renorm_.default
        return func(*args, **(kwargs or {}))


def write(
    folder: Path,
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    batching: Batching,
    variable: VariableSizes,
    any_size: Mapping[str, Sequence[int]],
    output_names: list[str],
    batch_dims: BatchDims,
) -> Script:
    """Writes model.pt, then loads it and compares it with the module.

    batching: unless NONE, dim 0 of every output must be the batch.
    variable: dims that must take several sizes.
    any_size: dims of each input that should take any size. Unless they also take twice the size of
        the example, they are fixed in the result.
    output_names: names to use instead of the module's, or empty.
    batch_dims: applied to the module, but not to the written one.
    """
    hooks.check_modules(module)
    if foreign := [name for name in inputs if not name.isascii()]:
        raise ExportError(
            f"input '{foreign[0]}': not an ASCII name (TorchScript supports only ASCII names)"
        )
    progress.stage("scripting or tracing the module")
    script, reason = _make(module, inputs, batch_dims)
    path = folder / "model.pt"
    script.save(str(path))
    progress.stage("comparing with the module")
    loaded = _Loaded(path, device_of(module), batch_dims)
    outputs = [
        _compare(module, loaded, inputs, batch, False, batching, output_names)
        for batch in BATCHES
    ]
    if not reason:
        for batch in BATCHES[1:]:
            _compare(module, loaded, inputs, batch, True, batching, output_names)
    for sizes in variable.tested(variable.example(inputs))[1:]:
        resized = variable.resize(inputs, sizes)
        with _sizes_named(sizes):
            outputs.append(_compare(module, loaded, resized, 7, False, batching, output_names))
            if not reason:
                _compare(module, loaded, resized, 7, True, batching, output_names)
    free: Mapping[str, Sequence[int]] = {}
    if any(any_size.values()):
        try:
            larger = {name: _double(each, any_size.get(name, ())) for name, each in inputs.items()}
            outputs.append(_compare(module, loaded, larger, 2, False, batching, output_names))
            free = any_size
        except ExportError:
            pass  # The model takes only the example's sizes.
    return Script(
        [
            config.input_tensor(
                name,
                DATATYPES[each.dtype],
                _row_sizes(each, {*free.get(name, ()), *variable.dims.get(name, ())}),
                batching,
                batch_dims.of(name),
            )
            for name, each in inputs.items()
        ],
        [
            config.tensor(
                name,
                DATATYPES[each.dtype],
                [batch[name].shape for batch in outputs],
                batching,
                batch_dims.of(name),
            )
            for name, each in outputs[0].items()
        ],
        reason,
        embeddings.script_frequency_notes(script),
    )


def _double(example: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for dim in dims:
        if dim < example.dim():
            example = torch.cat((example, example), dim)
    return example


@contextmanager
def _sizes_named(sizes: Sizes) -> Iterator[None]:
    """Adds the sizes to the message of an ExportError."""
    try:
        yield
    except ExportError as error:
        raise ExportError(f"{error}{sizes_suffix(sizes)}") from error


def _row_sizes(example: torch.Tensor, any_size: Collection[int]) -> list[int]:
    return [-1 if dim in any_size else size for dim, size in enumerate(example.shape)][1:]


def _make(
    module: nn.Module, inputs: dict[str, torch.Tensor], batch_dims: BatchDims
) -> tuple[torch.jit.ScriptModule, str]:
    """Returns the script, or a trace with the reason for it."""
    with torch.no_grad(), _Renormalization() as renormalization:
        _run_plain(module, inputs, device_of(module), False, [])
    check_evaluation_is_repeatable(module, inputs)
    try:
        if renormalization.seen:
            raise ExportError("TorchScript drops the renormalization by max_norm")
        with batch_dims.suspended(), restored(module), in_mode(module, False):
            return torch.jit.script(module), ""
    except Exception as error:  # The script compiler may raise anything.
        why = export_errors.first_line(error)
    try:
        with batch_dims.suspended(), restored(module), in_mode(module, False):
            given = {name: each.clone() for name, each in batch_dims.from_front(inputs).items()}
            positional, named = split_arguments(module, given)
            examples: dict[str, Any] = {"example_inputs": tuple(positional)}
            if named:
                examples = {"example_kwarg_inputs": given}
            traced = torch.jit.trace(module, **examples, strict=False, check_trace=False)
    except Exception as error:
        raise ExportError(
            f"TorchScript can neither script nor trace it: {why}; {export_errors.first_line(error)}"
        ) from error
    reason = (
        f"traced, because it cannot be scripted ({why or 'no reason given'}): in training, code "
        f"that depends on self.training, such as dropout and batch norm, behaves as in evaluation, "
        f"and branches on tensor values are fixed to those of the example"
    )
    return traced, reason


def _run(
    module: Any, inputs: dict[str, torch.Tensor], output_names: list[str]
) -> tuple[list[str], list[torch.Tensor]]:
    given = {name: each.clone() for name, each in inputs.items()}  # forward() may write to them.
    try:
        return _named_outputs(call(module, given), output_names)
    except ExportError:
        raise
    except Exception as error:
        raise export_errors.model_error("forward() fails", error) from error


def _named_outputs(
    result: Any, output_names: list[str]
) -> tuple[list[str], list[torch.Tensor]]:
    """Returns the names that config.pbtxt declares, and the tensors.

    The server takes outputs by their keys or in order, so names that are partly keys are not valid.
    """
    names, tensors = flatten_outputs(result, output_names)
    keys = flatten_outputs(result, fields=False)[0]
    if names == keys or not set(names) & set(keys):
        return names, tensors
    if output_names:
        raise ExportError(
            f"output_names: {', '.join(names)}, but forward() returns {', '.join(keys)} (expected "
            "all or none of these names for TorchScript)"
        )
    return keys, tensors


def _run_plain(
    module: nn.Module,
    given: dict[str, torch.Tensor],
    device: torch.device,
    training: bool,
    output_names: list[str],
) -> tuple[list[str], list[torch.Tensor]]:
    """Runs the module and restores it.

    The written module keeps changes of earlier runs. The comparison therefore fails if its results
    depend on them.
    """
    with restored(module), run_context.seeded(device, _SEED), in_mode(module, training):
        names, outputs = _run(module, given, output_names)
        return names, [each.clone() for each in outputs]


def _compare(
    module: nn.Module,
    script: _Loaded,
    inputs: dict[str, torch.Tensor],
    batch: int,
    training: bool,
    batching: Batching,
    output_names: list[str],
) -> dict[str, torch.Tensor]:
    """Returns the module's outputs. Raises ExportError if those of the script differ."""
    device = device_of(module)
    with torch.no_grad():
        given, (names, expected) = rows.run_varied(
            inputs, batch, lambda given: _run_plain(module, given, device, training, output_names)
        )
        got = script.run(given, training, names)
    for name, one, other in zip(names, expected, got, strict=True):
        if batching != Batching.NONE:
            check_batch_dim(name, one, batch)
        if one.shape != other.shape or not torch.allclose(
            one.double(), other.double(), rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            mode = "training" if training else "evaluation"
            raise ExportError(
                f"the TorchScript module does not match the model: output '{name}' in {mode} "
                f"differs for a batch of {batch}"
            )
    return dict(zip(names, expected))
