"""Packages that a self-test can run, with inputs and outputs named "role/name"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import sympy
import torch
from torch.export.exported_program import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    InputSpec,
    OutputKind,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Node
from torch.utils import _pytree as pytree

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.checks.comparison import PackageReader, input_sizes, size_of
from braid.exporter.checks.self_test_tensors import (
    DTYPES,
    MAX_STORED,
    MAX_STORED_IF_SPECIAL,
    describe,
    generate,
)
from braid.exporter.formats import pt2, safetensors
from braid.exporter.formats.archive import MANIFEST, Archive
from braid.exporter.formats.precisions import MODEL_PRECISION
from braid.exporter.model import rows, run_context
from braid.exporter.model.sizes import BATCH, Symbol
from braid.exporter.passes import default_dtype
from braid.exporter.passes.embeddings import index_ranges

_ROWS = 2
_SIZE = 5
_MAX_STORED_STATE = 256
# Uniform numbers in [-_SCALE, _SCALE] have a variance of 1.
_SCALE = math.sqrt(3)
# Magnitude that replaces all-zero parameters, for example gates, which would hide other results.
_INSTEAD_OF_ZEROS = 0.1
_SHRINK = 0.1

Tensors = dict[str, torch.Tensor]
Given = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Result:
    """Outputs of one graph."""

    graph: str
    role: str
    outputs: Tensors


class Runnable(Protocol):
    """Package whose graphs can be run."""

    device: torch.device

    def candidates(self) -> Iterator[Given]:
        """Yields descriptions of inputs that the graphs may accept, the best ones first."""

    def run(self, given: Tensors, seed: int) -> list[Result]:
        """Runs all graphs in their order, each with the generators seeded."""


class RunnablePair:
    """Whole model of an exported pair, in its own precision.

    state: returns by name the tensors whose statistics the generated ones copy.
    examples: example inputs, or None.
    """

    def __init__(
        self,
        reader: PackageReader,
        device: torch.device,
        state: Callable[[], Mapping[str, torch.Tensor]],
        examples: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.device = device
        self._reader = reader
        self._state = state
        self._examples = examples
        self._part = reader.json["parts"][0]
        self._sizes = _sizes_of(reader.json, examples)
        graphs = {each["precision"]: each for each in self._part["programs"]}
        if MODEL_PRECISION not in graphs:
            raise ExportError(f"no program of precision '{MODEL_PRECISION}'")
        self._graphs = graphs[MODEL_PRECISION]
        # With 2 rows, batch norm outputs ±1 regardless of the input.
        self._rows = max(
            _ROWS, _ROWS * self._part["min_training_rows"], self._part["min_evaluation_rows"]
        )

    @classmethod
    def read(cls, archive: Archive) -> RunnablePair:
        """Reads the package, and its weights from model.safetensors in the same folder."""
        with reading(archive):
            reader = PackageReader(archive.path)
        weights = archive.path.with_name("model.safetensors")
        with export_errors.wrap_errors(f"{archive.path}: {MANIFEST}: damaged"):
            device, state = torch.device(reader.json["device"]), reader.json["state"]
            package = cls(reader, device, lambda: _read_state(weights, state))
        check_device(archive, device)
        return package

    def candidates(self) -> Iterator[Given]:
        if self._examples is None:
            yield self._given(self._inputs())
            yield self._given(self._inputs(), _SHRINK)
        else:
            yield self._given(rows.vary_inputs(self._examples, self._rows))
            yield self._given(rows.repeat_inputs(self._examples, self._rows))
            yield self._given(rows.repeat_inputs(self._examples, self._rows), _SHRINK)

    def run(self, given: Tensors, seed: int) -> list[Result]:
        known = {tuple(name.split("/", 1)): tensor for name, tensor in given.items()}
        results = []
        for role in ("eval", "forward", "backward"):
            if role in self._graphs:
                with run_context.seeded(self.device, seed):
                    outputs = self._reader.run(self._graphs[role], known)
                known |= outputs
                compared = {
                    f"{slot}/{name}": tensor
                    for (slot, name), tensor in outputs.items()
                    if slot != "saved"
                }
                results.append(Result(self._graphs[role]["graph"], role, compared))
        return results

    def _given(self, inputs: Tensors, shrink: float = 1.0) -> Given:
        state, tensors = self._state(), {}
        for entry in self._reader.json["state"]:
            if "tied_to" not in entry:
                key = f"{entry['kind']}/{entry['name']}"
                tensors[key] = _without_zeros(entry, state[entry["name"]])
        tensors |= {f"input/{name}": tensor for name, tensor in inputs.items()}
        return _described(tensors | self._output_gradients(), shrink)

    def _inputs(self) -> Tensors:
        slots = enumerate(self._part["inputs"])
        return {slot["name"]: self._random(slot, place) for place, slot in slots}

    def _output_gradients(self) -> Tensors:
        slots = enumerate(self._graphs.get("backward", {"inputs": []})["inputs"])
        return {
            f"output_gradient/{slot['name']}": self._random(slot, place)
            for place, slot in slots
            if slot["role"] == "output_gradient"
        }

    def _random(self, slot: Mapping[str, Any], seed: int) -> torch.Tensor:
        shape = [size_of(size, self._sizes | {BATCH: self._rows}) for size in slot["shape"]]
        return _random(DTYPES[slot["dtype"]], shape, seed, slot.get("range"))


def _sizes_of(
    record: Mapping[str, Any], examples: Mapping[str, torch.Tensor] | None
) -> dict[str, int]:
    """Returns sizes for the variable dims of a pair: those of its examples, else small ones."""
    if examples is not None:
        return input_sizes(record["parts"][0]["inputs"], examples)
    symbols = [Symbol(**each) for each in record.get("symbols", [])]
    return {each.name: each.clamp(_SIZE) for each in symbols}


class RunnableProgram:
    """Program of torch.export.save, with its own weights."""

    def __init__(self, archive: Archive) -> None:
        with reading(archive):
            self._program: ExportedProgram = pt2.read(archive.path).exported_programs["model"]
        self._signature = self._program.graph_signature
        self._inputs = list(self._placeholders(archive))
        state = [*self._program.state_dict.values(), *self._program.constants.values()]
        tensors = [*state, *(node.meta["val"] for node in self._inputs)]
        on_gpu = any(each.is_cuda for each in tensors if isinstance(each, torch.Tensor))
        self.device = torch.device("cuda" if on_gpu else "cpu")
        check_device(archive, self.device)

    def _placeholders(self, archive: Archive) -> Iterator[Node]:
        by_name = {node.name: node for node in self._program.graph.nodes}
        for spec in self._signature.input_specs:
            if spec.kind != InputKind.USER_INPUT or hasattr(spec.arg, "value"):
                continue  # not an input, or a constant
            if not isinstance(spec.arg, (TensorArgument, SymIntArgument)):
                raise ExportError(
                    f"{archive.path}: input '{spec.arg.name}' of the program has an unsupported "
                    f"type (expected a tensor or an integer)"
                )
            yield by_name[spec.arg.name]

    def candidates(self) -> Iterator[Given]:
        examples = self._examples()
        if examples is None:
            yield _described(self._random())
        else:
            yield _described({name: self._cut(name, each) for name, each in examples.items()})
            yield _described(examples)

    def run(self, given: Tensors, seed: int) -> list[Result]:
        named = {node.name: given[f"input/{i}"] for i, node in enumerate(self._inputs)}
        arguments = [self._argument(spec, named) for spec in self._signature.input_specs]
        with run_context.seeded(self.device, seed), torch.no_grad(), default_dtype.server_default():
            values = self._program.graph_module.forward(*arguments)
        outputs = [
            _as_tensor(value)
            for spec, value in zip(self._signature.output_specs, values, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT and value is not None
        ]
        return [Result("model", "eval", {f"output/{i}": each for i, each in enumerate(outputs)})]

    def _argument(self, spec: InputSpec, named: Tensors) -> Any:
        if spec.kind == InputKind.USER_INPUT:
            if spec.arg.name not in named:
                return spec.arg.value
            value = named[spec.arg.name]
            return value if isinstance(spec.arg, TensorArgument) else int(value)
        for table in (self._program.state_dict, self._program.constants):
            if spec.target in table:
                value = table[spec.target]
                return value.detach().clone() if isinstance(value, torch.Tensor) else value
        raise ExportError(f"the program lacks '{spec.target}'")

    def _examples(self) -> Tensors | None:
        """Returns the program's example inputs, or None if they do not match its inputs."""
        leaves = pytree.tree_leaves(self._program.example_inputs)
        tensors = [each.detach() for each in leaves if isinstance(each, torch.Tensor)]
        values = [node.meta["val"] for node in self._inputs]
        if any(isinstance(each, torch.SymInt) for each in values):
            return None  # Number inputs cannot be distinguished from constants.
        if [(each.dtype, each.dim()) for each in tensors] != [
            (each.dtype, each.dim()) for each in values
        ]:
            return None
        return {f"input/{i}": each for i, each in enumerate(tensors)}

    def _random(self) -> Tensors:
        limits = index_ranges(self._program.graph_module)
        return {
            f"input/{i}": torch.tensor([self._size(node.meta["val"])])
            if isinstance(node.meta["val"], torch.SymInt)
            else _random(node.meta["val"].dtype, self._shape(node), i, limits.get(node.name))
            for i, node in enumerate(self._inputs)
        }

    def _cut(self, name: str, example: torch.Tensor) -> torch.Tensor:
        """Reduces all dynamic sizes of the example to their minimum."""
        for dim, size in enumerate(self._shape(self._inputs[int(name.removeprefix("input/"))])):
            places = torch.arange(size, device=example.device) % max(example.shape[dim], 1)
            example = example.index_select(dim, places)
        return example

    def _shape(self, node: Node) -> list[int]:
        return [self._size(each) for each in node.meta["val"].shape]

    def _size(self, size: int | torch.SymInt) -> int:
        if isinstance(size, int):
            return size
        expression = size.node.expr
        return int(expression.subs({each: self._least(each) for each in expression.free_symbols}))

    def _least(self, symbol: sympy.Symbol) -> int:
        limits = self._program.range_constraints.get(symbol)
        return _ROWS if limits is None else min(max(_ROWS, limits.lower), limits.upper)


def _read_state(path: Path, entries: list[dict[str, Any]]) -> Tensors:
    state = safetensors.read(path)
    for entry in entries:
        if "tied_to" not in entry and entry["name"] not in state:
            raise ExportError(f"{path}: lacks {entry['kind']} '{entry['name']}'")
    return state


def _described(tensors: Tensors, shrink: float = 1.0) -> Given:
    return {
        name: describe(tensor, seed, shrink, _max_stored(name, tensor))
        for seed, (name, tensor) in enumerate(tensors.items(), 1)
    }


def _max_stored(name: str, tensor: torch.Tensor) -> int:
    if tensor.is_floating_point():
        # Limits the total size: a large model has thousands of biases.
        return _MAX_STORED_STATE if name.startswith(("parameter/", "buffer/")) else MAX_STORED
    # Stores more, because columns of categories may have different ranges.
    return MAX_STORED_IF_SPECIAL if name.startswith("input/") else MAX_STORED


def _without_zeros(entry: Mapping[str, Any], tensor: torch.Tensor) -> torch.Tensor:
    if entry["kind"] == "buffer" or not tensor.is_floating_point() or tensor.any():
        return tensor
    size = _INSTEAD_OF_ZEROS
    return generate(tensor.dtype, list(tensor.shape), 0, scale=size, min=-size, max=size)


def _random(
    dtype: torch.dtype, shape: list[int], seed: int, limits: Sequence[int] | None = None
) -> torch.Tensor:
    low, high = limits or ((-_SCALE, _SCALE) if dtype.is_floating_point else (0, 1))
    return generate(dtype, shape, 1000 + seed, scale=_SCALE, min=low, max=high)


def _as_tensor(value: Any) -> torch.Tensor:
    """Converts a number to a tensor without dims, as the server does."""
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)


@contextmanager
def reading(archive: Archive) -> Iterator[None]:
    """Raises ExportError for a package that this PyTorch cannot read."""
    here = torch.__version__.partition("+")[0]
    with export_errors.wrap_errors(
        f"{archive.path}: PyTorch {here} cannot read the {archive.kind.value} "
        f"(made with PyTorch {archive.torch_version})"
    ):
        yield


def check_device(archive: Archive, device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ExportError(f"{archive.path}: exported for a GPU, but this machine has none")
