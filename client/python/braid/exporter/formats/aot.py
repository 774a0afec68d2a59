"""Export for inference, compiled ahead of time by AOTInductor."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import UserError
from torch.fx.experimental import _config as symbolic_shapes

from braid._export import ExportError
from braid.exporter import export_errors, progress
from braid.exporter.checks.repeatability import check_evaluation_is_repeatable
from braid.exporter.formats import config
from braid.exporter.formats.config import Batching
from braid.exporter.model import rows, run_context
from braid.exporter.model.run_context import in_mode
from braid.exporter.model.signature import DATATYPES, call, check_batch_dim, flatten_outputs
from braid.exporter.model.sizes import VariableSizes, sizes_suffix
from braid.exporter.model.snapshot import restored
from braid.exporter.model.state import device_of
from braid.exporter.passes import default_dtype
from braid.exporter.passes.embeddings import index_ranges
from braid.exporter.trace import encoder_layers, inductor

BATCHES = (1, 2, 7, 33)
_LARGEST = 1 << 20
# On GPUs, traces of cuDNN's batch norm take at most so many rows.
_LARGEST_ON_GPU = (1 << 16) - 1
_TOLERANCE = 1e-3
_RENORMALIZES = torch.ops.aten.embedding_renorm_.default
# Keys in the package's metadata that the server looks for.
_RANGES = "BRAID_RANGES"
_TORCH_VERSION = "BRAID_TORCH_VERSION"
_OPTIONS = {
    # An index out of range in multithreaded code ends the process.
    "cpp.threads": 1,
    # Precompiling headers takes longer than it saves for one package.
    "cpp_cache_precompile_headers": False,
}


@dataclass(frozen=True)
class Compiled:
    inputs: list[config.Tensor]
    outputs: list[config.Tensor]
    reason: str


def _flat(module: nn.Module, inputs: Iterable[str], output_names: list[str]) -> nn.Module:
    """Wraps the module so that it returns a flat tuple, or a flat dict by server output name."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, **given: torch.Tensor) -> Any:
            names, tensors = flatten_outputs(call(self.module, given), output_names)
            if all(name == f"output__{place}" for place, name in enumerate(names)):
                return tuple(tensors)
            return dict(zip(names, tensors))

    # torch.export matches inputs to arguments by name.
    kind = inspect.Parameter.KEYWORD_ONLY
    arguments = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    arguments += [inspect.Parameter(name, kind) for name in inputs]
    Flat.forward.__signature__ = inspect.Signature(arguments)
    return Flat()


def write(
    folder: Path,
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    batching: Batching,
    output_names: list[str],
    variable: VariableSizes,
) -> Compiled:
    """Writes model.pt2, then loads it and compares it with the module.

    batching: unless NONE, dim 0 of every output must be the batch.
    output_names: names to use instead of the module's, or empty.
    variable: variable dims of the inputs.
    """
    device = device_of(module)
    _check_compiler(device)
    # Before 2.15, PyTorch cannot run torch.cond after the row-independence test without a reset.
    torch.compiler.reset()
    check_evaluation_is_repeatable(module, inputs)
    path = folder / "model.pt2"
    progress.stage("compiling the module")
    with restored(module):
        with in_mode(module, False), torch.no_grad(), run_context.seeded(device, 0):
            _compile(module, inputs, path, output_names, variable)
    with in_mode(module, False), torch.no_grad(), run_context.seeded(device, 0):
        progress.stage("comparing with the module")
        loaded = torch._inductor.aoti_load_package(str(path))
        shapes = []
        for batch, sizes in _batches(variable, inputs):
            given, (names, expected, drawn) = rows.run_varied(
                variable.resize(inputs, sizes),
                batch,
                lambda given: _run(module, given, device, output_names),
            )
            with default_dtype.server_default():
                got = flatten_outputs(loaded(**_copies(given)))[1]
            if batching != Batching.NONE:
                for name, output in zip(names, expected):
                    check_batch_dim(name, output, batch)
            _compare(names, expected, got, f"{batch}{sizes_suffix(sizes)}", drawn)
            shapes.append([output.shape for output in expected])
    return Compiled(
        [
            config.input_tensor(name, DATATYPES[each.dtype], variable.row_of(name, each), batching)
            for name, each in inputs.items()
        ],
        [
            config.tensor(name, DATATYPES[each.dtype], of_output, batching)
            for name, each, of_output in zip(names, expected, zip(*shapes))
        ],
        "compiled for this processor, inference only",
    )


def _run(
    module: nn.Module,
    given: dict[str, torch.Tensor],
    device: torch.device,
    output_names: list[str],
) -> tuple[list[str], list[torch.Tensor], bool]:
    """Returns output names, outputs, and True if forward drew random numbers."""
    before = run_context.random_state(device)
    with restored(module):
        names, outputs = flatten_outputs(call(module, _copies(given)), output_names)
    return names, outputs, not torch.equal(before, run_context.random_state(device))


def _copies(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies the inputs, because forward may write to them."""
    return {name: each.clone() for name, each in given.items()}


def _check_compiler(device: torch.device) -> None:
    from torch._inductor import cpp_builder

    try:
        compiler = cpp_builder.get_cpp_compiler()
    except Exception as error:
        raise ExportError(
            f"format 'aot' needs a C++ compiler: {export_errors.first_line(error)}"
        ) from error
    if shutil.which(compiler) is None:
        raise ExportError(
            f"format 'aot' needs a C++ compiler: '{compiler}' not found (install g++, or set the "
            f"environment variable CXX)"
        )


def _batches(
    variable: VariableSizes, inputs: dict[str, torch.Tensor]
) -> list[tuple[int, dict[str, int]]]:
    example, *others = variable.tested(variable.example(inputs))
    return [(batch, example) for batch in BATCHES] + [(7, sizes) for sizes in others]


def _compile(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    path: Path,
    output_names: list[str],
    variable: VariableSizes,
) -> None:
    count = max(2, *(each.shape[0] for each in inputs.values()))
    taken = {size for each in inputs.values() for size in each.shape}
    resized = variable.resize(inputs, variable.traced(taken))
    examples = {name: rows.repeat_rows(each, count) for name, each in resized.items()}
    on_cpu = device_of(module).type == "cpu"
    batch = torch.export.Dim("batch", min=1, max=_LARGEST if on_cpu else _LARGEST_ON_GPU)
    symbols = {
        name: torch.export.Dim(name, min=each.min, max=each.max)
        for name, each in variable.symbols.items()
    }
    shapes: dict[str, dict[int, Any]] = {name: {0: batch} for name in inputs}
    for name, dims in variable.dims.items():
        for dim, each in dims.items():
            symbol = symbols[each.symbol]
            shapes[name][dim] = symbol if each.factor == 1 else each.factor * symbol
    try:
        flat = _flat(module, inputs, output_names)
        try:
            # Otherwise the trace treats one row as a special case and requires two or more.
            with symbolic_shapes.patch(backed_size_oblivious=True):
                _package(flat, examples, shapes, path)
        except UserError:  # Some operators check for a single row.
            _package(flat, examples, shapes, path)
    except ExportError:
        raise
    except Exception as error:
        raise export_errors.model_error("the module cannot be compiled", error) from error


def _package(module: nn.Module, examples: Any, shapes: Any, path: Path) -> None:
    # PyTorch's fused operator is faster than a compiled encoder layer.
    with (
        encoder_layers.fused(),
        inductor.dynamic_batch_convolutions(),
        inductor.checked_embedding_indices(),
        torch._inductor.config.patch(_OPTIONS),
    ):
        program = torch.export.export(module, (), examples, dynamic_shapes=shapes, strict=False)
        if any(each.target is _RENORMALIZES for each in program.graph.nodes):
            raise ExportError(
                "forward() writes to an embedding's parameter (max_norm), which format 'aot' does "
                "not support"
            )
        metadata = {
            _RANGES: json.dumps(_ranges(program, examples)),
            _TORCH_VERSION: torch.__version__,
        }
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(path),
            inductor_configs={"aot_inductor.metadata": metadata},
        )


def _ranges(program: torch.export.ExportedProgram, inputs: Iterable[str]) -> dict[str, Any]:
    """Returns the valid range of indices of each input that indexes embeddings."""
    by_placeholder = index_ranges(program.graph_module)
    placeholders = program.graph_signature.user_inputs
    pairs = zip(inputs, placeholders, strict=True)
    return {name: by_placeholder[place] for name, place in pairs if place in by_placeholder}


def _compare(
    names: list[str],
    expected: list[torch.Tensor],
    got: list[torch.Tensor],
    batch: str,
    drawn: bool,
) -> None:
    for name, one, other in zip(names, expected, got, strict=True):
        fits = one.shape == other.shape and one.dtype == other.dtype
        if not fits or not torch.allclose(
            one.double(), other.double(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True
        ):
            raise ExportError(
                f"the compiled package does not match the model: output '{name}' differs for a "
                f"batch of {batch}"
                + ("; forward() draws random numbers in evaluation, which differ" * drawn)
            )
