"""Comparison of a written package with the module in eager mode."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import sympy
import torch
from torch._export.serde.serialize import SerializeError
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._sympy import functions

from braid._export import ExportError
from braid.exporter import export_errors, progress
from braid.exporter.checks import differences, reference
from braid.exporter.checks.reference import SEED, ReferenceRun, Values
from braid.exporter.formats import package, pt2
from braid.exporter.formats.pair import ExportedPart, Pair
from braid.exporter.formats.precisions import DTYPES, MODEL_PRECISION, precision_errors
from braid.exporter.model import run_context
from braid.exporter.model.signature import DATATYPES
from braid.exporter.model.sizes import Sizes, sizes_suffix
from braid.exporter.passes import default_dtype
from braid.exporter.trace.joint_graph import Part

# One row comes last: its errors need not apply to larger batches.
BATCHES = (2, 7, 33, 1)
# The valid batch sizes do not depend on the precision, so two suffice.
_LOW_BATCHES = (2, 7)
# Batches of an expensive model. Traces use other sizes, so one of several rows shows a size that
# the graph contains as a number, and one row is a case of its own.
_FEW_BATCHES = (7, 1)
_FEW_LOW_BATCHES = (7,)
_EXPENSIVE_FLOPS = 1e9  # per row
_EXPENSIVE_PARAMETERS = 5e7
# Relative to the largest value. Only the order of operators may differ.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}
_LOW_TOLERANCE = 3e-2


class PackageReader:
    """Reader of a package that runs its graphs by the roles in train.json."""

    def __init__(self, path: Path) -> None:
        archive = pt2.read(path)
        self.programs: Mapping[str, ExportedProgram] = archive.exported_programs
        self.json = json.loads(archive.extra_files["train.json"])

    @cached_property
    def _inputs(self) -> dict[str, Any]:
        """Inputs of the part that each graph belongs to."""
        return {
            program[kind]["graph"]: part["inputs"]
            for part in self.json["parts"]
            for program in part["programs"]
            for kind in ("eval", "forward", "backward")
            if kind in program
        }

    def run(
        self, program: Mapping[str, Any], given: Mapping[tuple[str, str], torch.Tensor]
    ) -> dict[tuple[str, str], torch.Tensor]:
        """Returns outputs by role and name.

        Raises ExportError for shapes or dtypes other than declared.
        """
        exported = self.programs[program["graph"]]
        constants = [
            exported.constants[spec.target]
            for spec in exported.graph_signature.input_specs
            if spec.kind == InputKind.CONSTANT_TENSOR
        ]
        flat = [given[slot["role"], slot["name"]] for slot in program["inputs"]]
        with torch.no_grad(), default_dtype.server_default():
            # Calling the module itself would also print errors.
            outputs = exported.graph_module.forward(*constants, *flat)
        inputs = {name: tensor for (role, name), tensor in given.items() if role == "input"}
        sizes = input_sizes(self._inputs[program["graph"]], inputs)
        for slot, tensor in zip(program["outputs"], outputs, strict=True):
            _check_slot(program["graph"], slot, tensor, sizes)
        return {
            (slot["role"], slot["name"]): tensor
            for slot, tensor in zip(program["outputs"], outputs)
        }


def input_sizes(
    records: Sequence[Mapping[str, Any]], inputs: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Returns the sizes of the symbols in the shapes of a part's inputs in train.json."""
    sizes: dict[str, int] = {}
    for record in records:
        for declared, size in zip(record["shape"], inputs[record["name"]].shape):
            if isinstance(declared, str):
                factor, _, name = declared.rpartition("*")
                sizes[name] = size // int(factor or 1)
    return sizes


def _check_slot(
    graph: str, slot: Mapping[str, Any], tensor: torch.Tensor, sizes: Sizes
) -> None:
    shape = [size_of(each, sizes) for each in slot["shape"]]
    if list(tensor.shape) != shape or DATATYPES.get(tensor.dtype, slot["dtype"]) != slot["dtype"]:
        raise ExportError(
            f"{graph}: {slot['role']} '{slot['name']}' is {tensor.dtype} of shape "
            f"{list(tensor.shape)}{sizes_suffix(sizes)} (expected {slot['dtype']} of shape "
            f"{slot['shape']})"
        )


def size_of(record: int | str, sizes: Sizes) -> int:
    """Returns the size that a shape in train.json declares, a number or an expression."""
    symbols = {name: sympy.Symbol(name, integer=True) for name in sizes}
    expression = sympy.sympify(record, locals=vars(functions) | symbols)
    return int(expression.subs({symbols[name]: size for name, size in sizes.items()}))


def compare_pair(folder: Path, pair: Pair, full: bool = False) -> PackageReader:
    """Compares the package with the module, and returns its reader.

    full: compare all batches, also those of an expensive model.

    Raises ExportError with the tensor, the batch size and the difference.
    """
    try:
        reader = PackageReader(folder / "model.pt2")
    except SerializeError as error:
        raise package.write_error(pair, error) from error
    few = not full and _is_expensive(pair)
    low = _FEW_LOW_BATCHES if few else _LOW_BATCHES
    for exported, record in zip(pair.parts, reader.json["parts"], strict=True):
        for batch, sizes in _batches(exported.part, _FEW_BATCHES if few else BATCHES):
            plain = ReferenceRun(exported.part, pair.device, batch, sizes)
            progress.stage(f"comparing with the module, {plain}")
            for program in record["programs"]:
                if program["precision"] == MODEL_PRECISION or batch in low:
                    with precision_errors(program["precision"]), default_dtype.errors_explained():
                        _Comparison(reader, plain, exported, program).run()
    return reader


def _is_expensive(pair: Pair) -> bool:
    parameters = sum(each.tensor.numel() for each in pair.state if each.tied_to is None)
    flops = pair.row_independence.flops
    return flops > _EXPENSIVE_FLOPS or parameters > _EXPENSIVE_PARAMETERS


def _batches(part: Part, counts: Sequence[int]) -> list[tuple[int, Sizes]]:
    """Returns numbers of rows, each with sizes of the variable dims."""
    example, *others = part.sizes
    batches = list(zip(counts, itertools.chain([example], itertools.cycle(others or [example]))))
    # All sizes for a batch that every module takes.
    return batches + [(7, sizes) for sizes in others if (7, sizes) not in batches]


class _Comparison:
    """Comparison of one program with eager mode, for one batch."""

    def __init__(
        self,
        reader: PackageReader,
        plain: ReferenceRun,
        exported: ExportedPart,
        program: Mapping[str, Any],
    ) -> None:
        self._reader = reader
        self._program = program
        self._evaluated = plain.batch >= exported.min_evaluation_rows
        self._trained = "forward" in program and plain.batch >= exported.min_training_rows
        self._plain = plain
        self._precision = DTYPES.get(program["precision"])
        # A trace has at least two rows, and may rely on that.
        self._one_row_note = "; forward() treats one row differently" if plain.batch == 1 else ""
        self._where = f"{plain}, precision {program['precision']}"

    def run(self) -> None:
        if self._evaluated:
            self._compare(self._plain.evaluation, self._evaluation)
        if self._trained:
            self._compare(self._plain.training, self._training)

    def _compare(
        self, plain: Callable[[torch.dtype | None], Values], run: Callable[[], Values]
    ) -> None:
        expected = plain(self._precision)
        try:
            got = run()
        except (RuntimeError, IndexError) as error:
            if isinstance(error, RuntimeError) and not self._one_row_note:
                raise
            raise ExportError(
                f"the package does not match the model: {self._where}: it fails: "
                + export_errors.first_line(error)
                + self._one_row_note
            ) from error
        largest = {what: differences.largest(tensor) for what, tensor in expected.items()}
        gradients = max((size for what, size in largest.items() if "gradient" in what), default=0.0)
        for what, tensor in expected.items():
            where = f"{what}, {self._where}"
            difference = self._difference(where, tensor, got[what])
            allowed = _tolerance(tensor, self._precision) * largest[what]
            if self._precision is not None:
                if difference > allowed:
                    # The difference to the model's own precision estimates rounding.
                    allowed += 4 * differences.difference(tensor, plain(None)[what])
            elif "gradient" in what:
                # A gradient may be zero except for rounding, for example before a batch norm.
                most = _tolerance(tensor, None) * gradients
                allowed = max(allowed, 1e-2 * most)
                if allowed < difference <= most:
                    # An instance norm sums over more numbers than a batch norm.
                    allowed = max(allowed, 4 * self._plain.rounding(what))
            if difference > allowed:
                how = f"differs by up to {difference:.3g} (largest value {largest[what]:.3g})"
                if math.isinf(difference):
                    how = "finite and non-finite values differ"
                raise self._mismatch(where, how)

    def _difference(self, where: str, expected: torch.Tensor, got: torch.Tensor) -> float:
        if expected.dtype != got.dtype or expected.shape != got.shape:
            raise self._mismatch(
                where,
                f"{got.dtype} of shape {list(got.shape)} (expected {expected.dtype} of shape "
                f"{list(expected.shape)})",
            )
        return differences.difference(expected, got)

    def _mismatch(self, where: str, how: str) -> ExportError:
        return ExportError(
            f"the package does not match the model: {where}: {how}" + self._one_row_note
        )

    def _given(self, training: bool) -> dict[tuple[str, str], torch.Tensor]:
        # Graphs do not change their inputs.
        state = {(entry.kind, entry.name): entry.contiguous() for entry in self._plain.part.untied}
        inputs = self._plain.part.as_given(self._plain.inputs, training, self._precision)
        return state | {("input", name): each for name, each in inputs.items()}

    def _evaluation(self) -> Values:
        with run_context.seeded(self._plain.device, SEED):
            got = self._reader.run(self._program["eval"], self._given(False))
        names = self._plain.part.names
        return {reference.output_key(name, False): got["output", name] for name in names}

    def _training(self) -> Values:
        part, given = self._plain.part, self._given(True)
        with run_context.seeded(self._plain.device, SEED):
            after = self._reader.run(self._program["forward"], given)
        values = {reference.output_key(name, True): after["output", name] for name in part.names}
        for entry in part.untied:
            if entry.kind == "buffer":
                now = after.get(("new_buffer", entry.name), entry.tensor)
                values[reference.buffer_key(entry.name)] = now
        return values | self._gradients(given | after)

    def _gradients(self, known: dict[tuple[str, str], torch.Tensor]) -> Values:
        for name in self._plain.part.names:
            output = known["output", name]
            if output.is_floating_point():
                known["output_gradient", name] = self._plain.output_gradient(name, output)
        got = {}
        if "backward" in self._program:
            got = self._reader.run(self._program["backward"], known)
        values = {}
        for kind, name, tensor in self._plain.differentiated(self._precision):
            gradient = got.pop((f"{kind}_gradient", name), None)
            value = torch.zeros_like(tensor) if gradient is None else gradient
            values[reference.gradient_key(kind, name)] = value
        if got:
            raise ExportError(f"the backward graph returns unexpected gradients: {list(got)}")
        return values


def _tolerance(tensor: torch.Tensor, precision: torch.dtype | None) -> float:
    """Returns the tolerance relative to the largest value."""
    if not tensor.is_floating_point():
        return 0.0
    return _LOW_TOLERANCE if precision else _TOLERANCE.get(tensor.dtype, _LOW_TOLERANCE)
