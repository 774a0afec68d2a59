"""Export of a module: checks arguments, chooses the format, and publishes the version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from braid._export import ExportError, ExportResult
from braid.exporter import export_errors, progress, torch_versions
from braid.exporter.checks import hooks, row_independence, self_test
from braid.exporter.checks.comparison import PackageReader, compare_pair
from braid.exporter.checks.row_independence import DEPENDENT, RowIndependence
from braid.exporter.formats import aot, config, package, pair, torchscript
from braid.exporter.formats.config import Batching
from braid.exporter.formats.precisions import DTYPES, PrecisionError, Precisions
from braid.exporter.model import batch_dims, run_context, sizes
from braid.exporter.model.batch_dims import BatchDims
from braid.exporter.model.run_context import in_mode, quiet_torch
from braid.exporter.model.signature import (
    DATATYPES,
    NamesMismatch,
    call,
    check_output_names,
    flatten_outputs,
    named_inputs,
)
from braid.exporter.model.sizes import VariableSizes
from braid.exporter.model.snapshot import restored
from braid.exporter.model.state import contiguous_copy, device_of, state_entries
from braid.exporter.trace.stages import StageMismatch, check_paths

_FORMATS = ("auto", "pair", "torchscript", "aot")
_CHECKS = ("sample", "full")
# Each precision multiplies the export time. CPUs have no fast float16.
_DEFAULT_PRECISIONS = {"cpu": ["bfloat16"], "cuda": ["bfloat16", "float16"]}


_TRAINING_NOTE = (
    "in training, a model whose rows depend on each other sees only one chunk of the batch on each "
    "replica"
)


@dataclass(frozen=True)
class _Request:
    """Validated arguments of an export, and the role of dim 0.

    inputs: with the batch at dim 0.
    variable: variable dims of the inputs.
    batch_dims: applied to the module.
    any_size: see `config.Declared`.
    notes: on batching.
    assign: returns the version number for a model; None: the next one.
    full: compare all batches of a pair with the module, also those of an expensive model.
    """

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    precisions: Precisions
    chains: list[list[str]]
    eval_modules: list[str]
    independence: RowIndependence
    batching: Batching
    variable: VariableSizes
    batch_dims: BatchDims
    any_size: Mapping[str, Sequence[int]]
    notes: list[str]
    output_names: list[str]
    assign: Callable[[str], int] | None
    full: bool


@dataclass(frozen=True)
class _Written:
    """Written package, as config.pbtxt describes it. platform: empty for a pair."""

    platform: str
    filename: str
    inputs: list[config.Tensor]
    outputs: list[config.Tensor]
    reason: str = ""
    notes: list[str] = field(default_factory=list)


def export_checked(
    module: Any,
    example_inputs: Any,
    path: Path,
    format: str,
    stages: Sequence[Sequence[str]],
    precisions: Sequence[str] | None,
    eval_modules: Sequence[str],
    output_names: Sequence[str] | None,
    assign: Callable[[str], int] | None,
    dynamic: Any = None,
    check: str = "sample",
    batch_dim: Any = None,
) -> ExportResult:
    """Exports the module; see `braid.export`."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"module: {export_errors.type_with_article(module)} (expected a torch.nn.Module)"
        )
    if format not in _FORMATS:
        raise ValueError(f"format: '{format}' (expected one of {', '.join(_FORMATS)})")
    if check not in _CHECKS:
        raise ValueError(f"check: '{check}' (expected one of {', '.join(_CHECKS)})")
    _check_is_not_wrapped(module)
    dims = batch_dims.parse(batch_dim)
    inputs = named_inputs(module, example_inputs, dims)
    variable = sizes.parse(dynamic, inputs, dims)
    names = check_output_names(output_names)
    moved = BatchDims(module, dims, names)
    chains = _chains(module, stages)
    if moved and chains:
        raise ValueError("stages: cannot be combined with batch_dim (expected one of the two)")
    if moved and format == "aot":
        raise ValueError("batch_dim: format 'aot' takes the batch as dim 0 (expected a pair)")
    evaluated = _find_modules(module, eval_modules)
    device = device_of(module)
    for name, tensor in inputs.items():
        if tensor.device != device:
            raise ExportError(
                f"input '{name}' is on {tensor.device}, but the module is on {device}"
            )
    validated = _precisions(precisions, module)
    if format != "aot":
        hooks.check_parameters(module)
    with progress.reported(), quiet_torch(), run_context.default_modes():
        inputs = {name: contiguous_copy(each) for name, each in inputs.items()}
        moved.check(inputs)
        inputs = moved.to_front(inputs)
        with moved.applied():
            declared = config.read_declared(path / "config.pbtxt")
            if declared is not None:
                _check_interface(module, inputs, names, moved, path / "config.pbtxt")
            progress.stage("testing whether rows depend on each other")
            with restored(module):
                independence = row_independence.check(module, inputs, names)
            batching, notes = _batching(independence, declared, path / "config.pbtxt")
            if moved and batching == Batching.NONE:
                raise ExportError(f"batch_dim: the model is not batched: {'; '.join(notes)}")
            any_size = {} if declared is None else declared.any_size
            request = _Request(
                module,
                inputs,
                validated,
                chains,
                evaluated,
                independence,
                batching,
                variable,
                moved,
                any_size,
                notes,
                names,
                assign,
                check == "full",
            )
            return _export(request, path, format)


def _check_interface(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    names: list[str],
    batch_dims: BatchDims,
    path: Path,
) -> None:
    """Raises ExportError if the config.pbtxt at `path` contradicts the example, which is cheap."""
    progress.stage("comparing the example with config.pbtxt")
    config.check_example(path, "input", batch_dims.of, _interface(inputs))
    try:
        with restored(module), in_mode(module, False), torch.no_grad():
            with run_context.seeded(device_of(module), 0):
                result = call(module, {name: each.clone() for name, each in inputs.items()})
        # Named tuples have other names in TorchScript.
        namings = [
            _interface(dict(zip(*flatten_outputs(result, names, fields=fields))))
            for fields in (True, False)
        ]
    except Exception:
        return  # The export reports it, with the model's line.
    config.check_example(path, "output", batch_dims.of, *namings)


def _interface(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, list[int]]]:
    return {
        name: (DATATYPES.get(each.dtype, str(each.dtype)), list(each.shape))
        for name, each in tensors.items()
    }


def _batching(
    independence: RowIndependence, declared: config.Declared | None, path: Path
) -> tuple[Batching, list[str]]:
    """Returns the role of dim 0, and notes for the user. path: of config.pbtxt.

    Raises ExportError if that file declares batches although rows depend on each other.
    """
    evidence = independence.evidence
    if declared is None:
        if independence.holds:
            return Batching.MERGED, []
        whole = Batching.NONE if independence.by_shape else Batching.WHOLE
        return whole, [f"not batched (max_batch_size: 0): {evidence}"]
    if declared.max_batch_size == 0:
        dependent = declared.row_independence == config.DEPENDENT
        return Batching.WHOLE if dependent else Batching.NONE, []
    if independence.holds or declared.row_independence == config.DEPENDENT:
        return Batching.MERGED, []
    if independence.failed:
        return Batching.MERGED, []  # The format's own check reports the error with its line.
    if independence.one_number:
        return Batching.MERGED, [f"{evidence}, so a split batch returns several"]
    if independence.approximate:
        return Batching.MERGED, [f"batched, although rows affect each other slightly: {evidence}"]
    if declared.row_independence == config.ASSUMED and not independence.by_shape:
        return Batching.MERGED, [f"batched, because {path} assumes independent rows: {evidence}"]
    assume = (
        f', or to assume independence: parameters {{ key: "{config.ROW_INDEPENDENCE}" value '
        f'{{ string_value: "{config.ASSUMED}" }} }}'
    )
    raise ExportError(
        f"{path}: max_batch_size: {declared.max_batch_size}, but the rows of a batch "
        + ("depend on each other" if independence.result == DEPENDENT else "may not be independent")
        + f": {evidence} (expected max_batch_size: 0"
        + ("" if independence.by_shape else assume)
        + ")"
    )


def _check_is_not_wrapped(module: nn.Module) -> None:
    for path, each in module.named_modules():
        if isinstance(each, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            subject = f"the submodule '{path}'" if path else "the module"
            raise ExportError(
                f"{subject} is a {type(each).__name__} (expected the wrapped module: export its "
                f"`module` attribute; the server distributes batches itself)"
            )


def _chains(module: nn.Module, stages: Sequence[Sequence[str]]) -> list[list[str]]:
    chains = [[chain] if isinstance(chain, str) else list(chain) for chain in stages]
    if isinstance(stages, str) or (stages and any(isinstance(each, str) for each in stages)):
        raise TypeError(
            f"stages: {stages!r} (expected a list of chains, for example "
            f"[['features', 'classifier']])"
        )
    check_paths(module, chains)
    return chains


def _find_modules(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Returns the paths of the submodules that match one of `patterns`, and of theirs."""
    if isinstance(patterns, str):
        raise TypeError(f"eval_modules: {patterns!r} (expected a list of patterns)")
    paths = [path for path, _ in module.named_modules(remove_duplicate=False) if path]
    matched = []
    for pattern in patterns:
        try:
            found = [path for path in paths if re.search(pattern, path)]
        except re.error as error:
            raise ValueError(
                f"eval_modules: '{pattern}' is not a regular expression ({error})"
            ) from None
        if not found:
            known = ", ".join(paths[:5]) + (", …" if len(paths) > 5 else "")
            raise ValueError(
                f"eval_modules: '{pattern}' matches no submodule (the model has {known or 'none'})"
            )
        matched += found
    return [path for path in paths if any(f"{path}.".startswith(f"{each}.") for each in matched)]


def _precisions(precisions: Sequence[str] | None, module: nn.Module) -> Precisions:
    if precisions is None:
        single = any(entry.tensor.dtype == torch.float32 for entry in state_entries(module))
        names = _DEFAULT_PRECISIONS[device_of(module).type] if single else []
        return Precisions(names, by_name=False)
    for name in precisions:
        if name not in DTYPES:
            raise ValueError(
                f"precisions: '{name}' (expected some of {', '.join(DTYPES)}; the model's own is "
                f"always included)"
            )
    return Precisions(list(dict.fromkeys(precisions)), by_name=True)


def _export(request: _Request, path: Path, format: str) -> ExportResult:
    model = path.absolute()
    if model.exists() and not model.is_dir():
        raise ExportError(f"path: '{path}' is a file (expected the model's folder)")
    if format != "auto":
        return _write(format, _WRITERS[format], request, path)
    try:
        return _write("pair", _write_pair, request, path)
    except (StageMismatch, NamesMismatch):
        raise
    except ExportError as error:
        first = str(error)
    try:
        return _write("torchscript", _write_torchscript, request, path, f"no pair: {first}")
    except ExportError as error:
        if str(error) == first:
            raise  # config.pbtxt fits neither.
        raise ExportError(f"no pair: {first}\nno TorchScript: {error}") from error


def _write(
    format: str,
    writer: Callable[[Path, _Request], _Written],
    request: _Request,
    path: Path,
    reason: str = "",
) -> ExportResult:
    model = path.absolute()
    with package.temporary_folder(model) as folder:
        version = folder / "version"
        version.mkdir()
        try:
            with restored(request.module), run_context.seeded(device_of(request.module), 0):
                written = writer(version, request)
        except ExportError:
            raise
        except Exception as error:
            raise export_errors.to_export_error(error) from error
        config_path = model / "config.pbtxt"
        text = None
        if config_path.exists():
            config.check_matches(
                config_path, written.platform, written.filename, written.inputs, written.outputs
            )
        else:
            text = config.to_text(
                written.platform, written.inputs, written.outputs, request.batching
            )
        place = package.publish(version, model, text, request.assign)
    notes = [each for each in (reason, *request.notes, written.reason) if each]
    trained = format != "aot" and any(each.requires_grad for each in request.module.parameters())
    about_training = (
        [_TRAINING_NOTE] if trained and request.independence.result == DEPENDENT else []
    )
    return ExportResult(
        format,
        path / place.name,
        int(place.name),
        "; ".join(notes),
        (*notes, *about_training, *written.notes),
    )


def _write_pair(folder: Path, request: _Request) -> _Written:
    if torch_versions.installed() < (2, 15):
        # Otherwise, torch.cond fails after the row-independence test.
        torch.compiler.reset()
    # cuDNN's batch norm is an operator of its own, which takes few rows and rounds differently.
    with run_context.without_validation(), torch.backends.cudnn.flags(enabled=False):
        with restored(request.module):
            made = pair.make_pair(
                request.module,
                request.inputs,
                request.precisions,
                request.chains,
                request.eval_modules,
                request.independence,
                request.output_names,
                request.variable,
                request.batch_dims,
            )
        made, reader = _write_checked(folder, request, made)
        notes = _add_self_test(folder, made, reader)
    whole = made.train_json()["parts"][0]
    # Dim 0 of a pair is always a batch.
    merged = request.batching == Batching.MERGED
    batching = Batching.MERGED if merged else Batching.WHOLE
    inputs, outputs = (
        [_tensor_of_pair(each, batching) for each in whole[field]]
        for field in ("inputs", "outputs")
    )
    reasons = [_device_note(made.device), request.precisions.reason()]
    return _Written("", "model.pt2", inputs, outputs, "; ".join(filter(None, reasons)), made.notes() + notes)


def _tensor_of_pair(record: dict[str, Any], batching: Batching) -> config.Tensor:
    shape = [size if isinstance(size, int) else -1 for size in record["shape"]]
    return config.tensor(
        record["name"], record["dtype"], [shape], batching, record.get("batch_dim", 0)
    )


def _write_checked(
    folder: Path, request: _Request, made: pair.Pair
) -> tuple[pair.Pair, PackageReader]:
    """Writes and compares the pair without the precisions that fail. Returns it and its reader."""
    while True:
        try:
            progress.stage("writing the package")
            package.write_pair(folder, made)
            with restored(request.module):
                reader = compare_pair(folder, made, request.full)
        except PrecisionError as error:
            request.precisions.skip(error)
            made = made.without(error.name)
        else:
            return made, reader


def _add_self_test(folder: Path, made: pair.Pair, reader: PackageReader) -> list[str]:
    """Adds a self-test. Returns a note if the graphs reject generated weights."""
    progress.stage("adding a self-test")
    try:
        self_test.add_to_pair(folder / "model.pt2", made, reader)
    except self_test.NoSelfTest as error:
        return [f"no self-test for servers with other versions of PyTorch: {error}"]
    return []


def _device_note(device: torch.device) -> str:
    if device.type == "cpu" and torch.cuda.is_available():
        return "the module is on the CPU, so the package serves on CPUs only"
    return ""


def _write_torchscript(folder: Path, request: _Request) -> _Written:
    script = torchscript.write(
        folder,
        request.module,
        request.inputs,
        request.batching,
        request.variable,
        request.any_size,
        request.output_names,
        request.batch_dims,
    )
    return _Written(
        "pytorch_libtorch", "model.pt", script.inputs, script.outputs, script.reason, script.notes
    )


def _write_aot(folder: Path, request: _Request) -> _Written:
    compiled = aot.write(
        folder,
        request.module,
        request.inputs,
        request.batching,
        request.output_names,
        request.variable,
    )
    return _Written("torch_aoti", "model.pt2", compiled.inputs, compiled.outputs, compiled.reason)


_WRITERS = {"pair": _write_pair, "torchscript": _write_torchscript, "aot": _write_aot}
