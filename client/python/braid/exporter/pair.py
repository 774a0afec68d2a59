"""A module as a pair of graphs: what is traced, and what train.json says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from braid._export import ExportError
from braid.exporter import programs, rows, source, stages
from braid.exporter.joint import Part, in_mode, trace, trace_rows
from braid.exporter.precisions import DTYPES, MODELS_OWN, PrecisionError, Precisions, naming
from braid.exporter.programs import Program
from braid.exporter.signature import DATATYPES, flatten
from braid.exporter.state import StateEntry, device_of, holding, state_of
from braid.exporter.watch import Watch

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Precision:
    """The programs of one precision. Without `forward` nothing can be trained; a stage without
    `backward` is run in training, but has nothing to learn and nothing before it that has."""

    name: str
    evaluation: Program
    forward: Program | None
    backward: Program | None


@dataclass(frozen=True)
class ExportedPart:
    part: Part
    min_training_rows: int
    min_evaluation_rows: int
    precisions: list[Precision]


@dataclass(frozen=True)
class Pair:
    device: torch.device
    state: list[StateEntry]
    chains: list[list[str]]
    parts: list[ExportedPart]

    def without(self, precision: str) -> Pair:
        parts = [
            replace(part, precisions=[each for each in part.precisions if each.name != precision])
            for part in self.parts
        ]
        return replace(self, parts=parts)

    def graphs(self) -> dict[str, Program]:
        """By the names that train.json has for them."""
        named: dict[str, Program] = {}
        for index, part in enumerate(self.parts):
            for each in part.precisions:
                for kind, program in _kinds(each):
                    named[_graph_name(index, each.name, kind)] = program
        return named

    def train_json(self) -> dict[str, Any]:
        return {
            "format": "braid-pair",
            "schema_version": SCHEMA_VERSION,
            "torch_version": torch.__version__.partition("+")[0],
            "device": self.device.type,
            "state": [_state_json(entry) for entry in self.state],
            "chains": self.chains,
            "parts": [_part_json(index, part) for index, part in enumerate(self.parts)],
        }


def make_pair(
    module: nn.Module,
    inputs: dict[str, torch.Tensor],
    precisions: Precisions,
    chains: list[list[str]],
) -> Pair:
    """precisions: beside the model's own. chains: of submodules' paths."""
    _check_is_python(module)
    device = device_of(module)
    state = state_of(module)
    whole = Part("", module, state, inputs)
    parts = [whole, *stages.parts_of(whole, chains, device)]
    for part in parts:
        _probe(part)
    made = [[_trace(part, MODELS_OWN, device) for part in parts]]
    for name in precisions.names:
        try:
            with naming(name):
                made.append([_trace(part, name, device) for part in parts])
        except PrecisionError as error:
            precisions.leave_out(error)
    return Pair(device, state, chains, [
        ExportedPart(part, *_fewest_rows(part, device), list(of_part))
        for part, of_part in zip(parts, zip(*made))
    ])


def _check_is_python(module: nn.Module) -> None:
    for path, each in module.named_modules():
        if isinstance(each, torch.jit.ScriptModule):
            said = f"the submodule '{path}'" if path else "the module"
            raise ExportError(f"{said} is TorchScript; a pair is made of the Python module")


def _trace(part: Part, name: str, device: torch.device) -> Precision:
    dtype = DTYPES.get(name)
    evaluation = programs.evaluation(part, trace(part, False, dtype, device))
    forward = backward = None
    if part.path or any(entry.trainable for entry in part.entries):
        forward, backward = programs.training(part, trace(part, True, dtype, device))
    return Precision(name, evaluation, forward, backward)


def _probe(part: Part) -> None:
    """Runs the module, to learn its outputs' names and which of them are no tensors of their own.

    ExportError, with the line, for what a package cannot do.
    """
    for training in (True, False):
        # A module that takes one number of rows alone fails here, where its line is known.
        for count in (trace_rows(part) + 1, trace_rows(part)):
            inputs = {name: rows.take(each, count) for name, each in part.inputs.items()}
            state = {entry.name: entry.copy() for entry in part.untied}
            for entry in part.untied:
                state[entry.name].requires_grad_(training and entry.trainable)
            with in_mode(part.module, training), torch.set_grad_enabled(training):
                names, outputs = _run_watched(part, state, inputs)
            if names != (part.names or names):
                raise ExportError(
                    f"forward returns now {', '.join(part.names)}, now {', '.join(names)}; "
                    f"expected the same for all batches, in training and evaluation"
                )
            part.names = names
        part.copied[training] = _copied(outputs, [*state.values(), *inputs.values()], training)


def _run_watched(
    part: Part, state: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
) -> tuple[list[str], list[torch.Tensor]]:
    fixed = [(f"the input '{name}'", each) for name, each in inputs.items()]
    named = [(f"the {entry.kind} '{entry.name}'", entry) for entry in part.untied]
    fixed += [(said, state[each.name]) for said, each in named if each.kind == "parameter"]
    buffers = [(said, state[each.name]) for said, each in named if each.kind == "buffer"]
    replaced = [(said, each.tensor) for said, each in named]
    device = device_of(part.module)
    count = next(iter(inputs.values())).shape[0]
    try:
        with rows.seeded(device, 0), holding(part.module, part.entries, state):
            with Watch(device, fixed, buffers, replaced):
                return flatten(part.module(**inputs))
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(
            f"forward fails with a batch of {count}{_about_layout(part)}: "
            f"{type(error).__name__}: {error}" + source.at(source.of_error(error))
        ) from error


def _about_layout(part: Part) -> str:
    """What plain PyTorch may have been spared."""
    strided = [each.name for each in part.untied if each.tensor.stride() != each.copy().stride()]
    if not strided:
        return ""
    return f" and {', '.join(map(repr, strided))} laid out row by row, as a server has it"


def _copied(
    outputs: list[torch.Tensor], given: list[torch.Tensor], training: bool
) -> list[bool]:
    memory = [tensor.untyped_storage().data_ptr() for tensor in given]
    copied = []
    for tensor in outputs:
        mine = tensor.untyped_storage().data_ptr()
        # Gradients come in the order of the elements that the outputs have.
        awkward = training and (tensor._is_view() or not tensor.is_contiguous())
        copied.append(awkward or (mine in memory and tensor.numel() > 0))
        memory.append(mine)
    return copied


def _fewest_rows(part: Part, device: torch.device) -> list[int]:
    """In training and in evaluation."""
    return [1 if _takes_one_row(part, device, training) else 2 for training in (True, False)]


def _takes_one_row(part: Part, device: torch.device, training: bool) -> bool:
    inputs = {name: rows.take(example, 1) for name, example in part.inputs.items()}
    state = {entry.name: entry.copy() for entry in part.untied}
    with rows.seeded(device, 0), in_mode(part.module, training), torch.no_grad():
        try:
            part.run(state, inputs)
        except (ValueError, RuntimeError):  # Such as batch norm's: one row has no variance.
            return False
    return True


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
    return f"{prefix}{short}" if precision == MODELS_OWN else f"{prefix}{short}_{precision}"


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


def _part_json(index: int, exported: ExportedPart) -> dict[str, Any]:
    part = exported.part
    evaluation = exported.precisions[0].evaluation
    named = {"input": evaluation.inputs, "output": evaluation.outputs}
    ranges = evaluation.ranges()
    io = {
        role: [_io_json(slot, ranges) for slot in slots if slot.role == role]
        for role, slots in named.items()
    }
    return {
        "path": part.path,
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


def _io_json(slot: programs.Slot, ranges: dict[str, tuple[int, int]]) -> dict[str, Any]:
    fields = {"name": slot.name, "dtype": slot.dtype, "shape": slot.shape}
    if slot.role == "input" and slot.name in ranges:
        fields["range"] = list(ranges[slot.name])
    return fields
