"""Exported pair: forward and backward graphs of a module, and its manifest train.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter import progress
from braid.exporter.checks import dry_run
from braid.exporter.checks.row_independence import RowIndependence
from braid.exporter.formats import programs
from braid.exporter.formats.precisions import (
    DTYPES,
    MODEL_PRECISION,
    PrecisionError,
    Precisions,
    precision_errors,
)
from braid.exporter.formats.programs import Program
from braid.exporter.model.batch_dims import BatchDims
from braid.exporter.model.signature import DATATYPES
from braid.exporter.model.sizes import Symbol, VariableSizes
from braid.exporter.model.state import (
    StateEntry,
    bindings_restored,
    bitwise_equal,
    device_of,
    state_entries,
    values_restored,
)
from braid.exporter.passes import embeddings
from braid.exporter.trace import stages
from braid.exporter.trace.joint_graph import Part, fixed_sizes, trace


@dataclass(frozen=True)
class Precision:
    """Programs of one precision.

    Without `forward` the model cannot be trained. A stage without `backward` runs in training, but
    neither it nor any stage before it has trainable parameters.
    """

    name: str
    evaluation: Program
    forward: Program | None
    backward: Program | None


@dataclass(frozen=True)
class ExportedPart:
    """Programs of a part. eval_modules: True if they are those with modules in evaluation mode."""

    part: Part
    eval_modules: bool
    min_training_rows: int
    min_evaluation_rows: int
    precisions: list[Precision]


@dataclass(frozen=True)
class Pair:
    """Graphs of a module and of its stages.

    modules: paths of all submodules.
    eval_modules: paths of those that are in evaluation mode in the parts with `eval_modules`.
    batch_dims: of clients and of the module. The graphs have the batch as dim 0.
    """

    device: torch.device
    state: list[StateEntry]
    modules: list[str]
    eval_modules: list[str]
    chains: list[list[str]]
    parts: list[ExportedPart]
    row_independence: RowIndependence
    variable: VariableSizes
    batch_dims: BatchDims

    def without(self, precision: str) -> Pair:
        parts = [
            replace(part, precisions=[each for each in part.precisions if each.name != precision])
            for part in self.parts
        ]
        return replace(self, parts=parts)

    def graphs(self) -> dict[str, Program]:
        """Returns the programs by their graph names in train.json."""
        named: dict[str, Program] = {}
        for index, part in enumerate(self.parts):
            for each in part.precisions:
                for kind, program in _kinds(each):
                    named[_graph_name(index, each.name, kind)] = program
        return named

    def notes(self) -> list[str]:
        """Notes for users who train the pair on several replicas."""
        names = {
            slot.name: None
            for each in self.parts[0].precisions
            if each.backward is not None
            for slot in each.backward.outputs
            if not slot.additive
        }
        return [embeddings.frequency_note(repr(name)) for name in names]

    def train_json(self) -> dict[str, Any]:
        symbols = [_symbol_json(each) for each in self.variable.symbols.values()]
        return {
            "format": "braid-pair",
            # Servers of earlier releases know neither variable sizes nor other batch dims.
            "schema_version": 3 if self.batch_dims else 2 if symbols else 1,
            "torch_version": torch.__version__.partition("+")[0],
            "device": self.device.type,
            "row_independence": self.row_independence.as_json(),
            "state": [_state_json(entry) for entry in self.state],
            "modules": self.modules,
            "eval_modules": self.eval_modules,
            "chains": self.chains,
            **({"symbols": symbols} if symbols else {}),
            "parts": [
                _part_json(index, part, self.batch_dims) for index, part in enumerate(self.parts)
            ],
        }


def make_pair(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    precisions: Precisions,
    chains: list[list[str]],
    eval_modules: list[str],
    row_independence: RowIndependence,
    output_names: list[str],
    variable: VariableSizes,
    batch_dims: BatchDims,
) -> Pair:
    """Traces the module in all precisions.

    precisions: in addition to the model's own.
    chains: pipelines, as lists of submodule paths.
    eval_modules: paths of the submodules for which a second set of graphs is traced, with these in
        evaluation mode in training, too.
    row_independence: result that the package records.
    output_names: names to use instead of the module's, or empty.
    variable: variable dims of the inputs.
    batch_dims: applied to the module.
    """
    _check_is_python(module)
    _check_mode_switch(module)
    device = device_of(module)
    state = state_entries(module)
    evaluated = tuple(map(module.get_submodule, eval_modules))
    sets = []
    for each in [(), evaluated] if evaluated else [()]:
        whole = Part(
            "", module, state, inputs, variable, evaluated=each, given_names=output_names
        )
        if variable.symbols:
            whole.sizes = variable.tested(variable.example(inputs))
            whole.traced_sizes = variable.traced(fixed_sizes(whole))
        sets.append([whole, *stages.make_parts(whole, chains, device)])
    parts = [part for each in sets for part in each]
    progress.stage("checking forward and backward")
    for part in parts:
        dry_run.run(part)
    made = [[_trace(part, MODEL_PRECISION, device) for part in parts]]
    for name in precisions.names:
        try:
            with precision_errors(name):
                for each in sets:
                    stages.infer_datatypes(each, chains, DTYPES[name], device)
                for part in parts:
                    dry_run.run_precision(part, DTYPES[name])
                made.append([_trace(part, name, device) for part in parts])
        except PrecisionError as error:
            precisions.skip(error)
    exported = [
        ExportedPart(part, place >= len(sets[0]), *dry_run.min_rows(part, device), list(of_part))
        for place, (part, of_part) in enumerate(zip(parts, zip(*made)))
    ]
    modules = [path for path, _ in module.named_modules(remove_duplicate=False) if path]
    return Pair(
        device,
        state,
        modules,
        eval_modules,
        chains,
        exported,
        row_independence,
        variable,
        batch_dims,
    )


def _check_mode_switch(module: nn.Module) -> None:
    """Raises ExportError if train() or eval() changes a parameter or buffer.

    An adapter that merges into the weights for evaluation does so. A package has one set of
    weights for both modes.
    """
    if all(map(_only_sets_flag, module.modules())):
        return
    with values_restored(module), bindings_restored(module):
        module.train(module.training)
        before = [(entry, entry.copy()) for entry in state_entries(module)]
        for training in (not module.training, module.training):
            module.train(training)
            now = {entry.name: entry.tensor for entry in state_entries(module)}
            for entry, was in before:
                if entry.name not in now or not bitwise_equal(now[entry.name], was):
                    called = "train()" if training else "eval()"
                    raise ExportError(
                        f"{called} changes the {entry.kind} '{entry.name}', but a package has one "
                        f"for training and evaluation (disable this, for example merging of "
                        f"adapter weights)"
                    )


def _only_sets_flag(module: nn.Module) -> bool:
    """Returns True if train() and eval() are PyTorch's own, which only set `training`."""
    own = vars(module)
    return not any(
        name in own or getattr(type(module), name) is not getattr(nn.Module, name)
        for name in ("train", "eval", "__setattr__")
    )


def _check_is_python(module: nn.Module) -> None:
    for path, each in module.named_modules():
        if isinstance(each, torch.jit.ScriptModule):
            subject = f"the submodule '{path}'" if path else "the module"
            raise ExportError(f"{subject} is TorchScript (a pair needs a Python module)")


def _trace(part: Part, name: str, device: torch.device) -> Precision:
    dtype = DTYPES.get(name)
    where = f" in {name}" if dtype else ""
    where += f" for stage '{part.path}'" if part.path else ""
    progress.stage(f"tracing forward{where}")
    evaluation = programs.evaluation(part, trace(part, False, dtype, device))
    forward = backward = None
    if part.path or any(entry.trainable for entry in part.entries):
        progress.stage(f"tracing forward and backward{where}")
        forward, backward = programs.training(part, trace(part, True, dtype, device), dtype)
    return Precision(name, evaluation, forward, backward)


def _kinds(precision: Precision) -> list[tuple[str, Program]]:
    kinds = [("eval", precision.evaluation)]
    if precision.forward is not None:
        kinds.append(("forward", precision.forward))
    if precision.backward is not None:
        kinds.append(("backward", precision.backward))
    return kinds


def _graph_name(part: int, precision: str, kind: str) -> str:
    short = {"eval": "eval", "forward": "fw", "backward": "bw"}[kind]
    prefix = f"part{part}_" if part else ""
    return f"{prefix}{short}" if precision == MODEL_PRECISION else f"{prefix}{short}_{precision}"


def _state_json(entry: StateEntry) -> dict[str, Any]:
    fields = {
        "name": entry.name,
        "kind": entry.kind,
        "dtype": DATATYPES[entry.tensor.dtype],
        "shape": list(entry.tensor.shape),
    }
    if entry.kind == "parameter":
        fields["trainable"] = entry.trainable
    if entry.tied_to is not None:
        fields["tied_to"] = entry.tied_to
    return fields


def _symbol_json(symbol: Symbol) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": symbol.name, "min": symbol.min}
    return fields if symbol.max is None else fields | {"max": symbol.max}


def _part_json(index: int, exported: ExportedPart, batch_dims: BatchDims) -> dict[str, Any]:
    part = exported.part
    evaluation = exported.precisions[0].evaluation
    named = {"input": evaluation.inputs, "output": evaluation.outputs}
    ranges = evaluation.ranges()
    io = {
        role: [_io_json(slot, ranges, batch_dims) for slot in slots if slot.role == role]
        for role, slots in named.items()
    }
    return {
        "path": part.path,
        "eval_modules": exported.eval_modules,
        "inputs": io["input"],
        "outputs": io["output"],
        "min_training_rows": exported.min_training_rows,
        "min_evaluation_rows": exported.min_evaluation_rows,
        "programs": [
            {"precision": each.name}
            | {
                kind: {
                    "graph": _graph_name(index, each.name, kind),
                    "inputs": [slot.as_json() for slot in program.inputs],
                    "outputs": [slot.as_json() for slot in program.outputs],
                }
                for kind, program in _kinds(each)
            }
            for each in exported.precisions
        ],
    }


def _io_json(
    slot: programs.Slot, ranges: dict[str, tuple[int, int]], batch_dims: BatchDims
) -> dict[str, Any]:
    fields = {"name": slot.name, "dtype": slot.dtype, "shape": slot.shape}
    if slot.role == "input" and slot.name in ranges:
        fields["range"] = list(ranges[slot.name])
    if batch_dims.of(slot.name):
        fields["batch_dim"] = batch_dims.of(slot.name)
    return fields
