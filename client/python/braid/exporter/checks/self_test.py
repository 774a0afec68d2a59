"""Self-test of a package: inputs and expected results for every version of PyTorch.

The record is stored in model.pt2; docs/reference/exported-pair.md documents it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.checks import differences, self_test_tensors
from braid.exporter.checks.comparison import PackageReader
from braid.exporter.checks.reference import SEED
from braid.exporter.checks.runnable import (
    Given,
    Result,
    Runnable,
    RunnablePair,
    RunnableProgram,
    Tensors,
)
from braid.exporter.formats.archive import SELF_TEST, Archive, Kind
from braid.exporter.formats.pair import Pair
from braid.exporter.model.state import contiguous_copy

_FORMAT = "braid-self-test"
_SCHEMA_VERSION = 1
_NUDGES = (1, 2)
_AMPLIFICATION = 8
# Relative to the largest value.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 3e-2}
_GRADIENTS_SHARE = 1e-2

# Graph, and output as "role/name".
_Key = tuple[str, str]


class NoSelfTest(ExportError):
    """The graphs reject generated tensors."""


@dataclass(frozen=True)
class Difference:
    """Output that differs from the expected one by more than the tolerance. output: "role/name"."""

    graph: str
    output: str
    largest: float
    tolerance: float

    def __str__(self) -> str:
        return (
            f"graph '{self.graph}', {_label(self.output)} differs by up to {self.largest:.3g} "
            f"(tolerance {self.tolerance:.3g})"
        )


def _label(output: str) -> str:
    role, _, name = output.partition("/")
    return f"{role} '{name}'"


def run(path: str | os.PathLike[str]) -> list[Difference]:
    """Runs the self-test of the package `path`, and returns the outputs that differ.

    Raises ExportError if the package has none, or if the record or package cannot be read.
    """
    archive = Archive(Path(path))
    if not archive.has_self_test:
        raise ExportError(f"{path}: no self-test")
    package = _open(archive)
    damaged = f"{path}: {SELF_TEST}: damaged"
    with export_errors.wrap_errors(damaged):
        record = json.loads(archive.self_test())
        _check_schema(record)
        given, seed = _tensors(record["given"], package.device), int(record["seed"])
    with export_errors.wrap_errors(f"{path}: self-test"):
        results = package.run(given, seed)
    with export_errors.wrap_errors(damaged):
        return list(_compare(record["graphs"], results))


def _check_schema(record: dict[str, Any]) -> None:
    for field, expected in (("format", _FORMAT), ("schema_version", _SCHEMA_VERSION)):
        if record[field] != expected:
            raise ValueError(f"{field}: {record[field]!r} (expected {expected!r})")


def _compare(graphs: list[dict[str, Any]], results: list[Result]) -> Iterator[Difference]:
    by_graph = {(result.graph, result.role): result.outputs for result in results}
    for record in graphs:
        graph, role = record["graph"], record["role"]
        if (graph, role) not in by_graph:
            raise ValueError(f"the package has no graph '{graph}' for {role}")
        outputs = by_graph[graph, role]
        for name, expected in record["expected"].items():
            if name not in outputs:
                raise ValueError(f"graph '{graph}' has no {_label(name)}")
            difference = self_test_tensors.largest_difference(expected, outputs[name])
            if not difference <= expected["tolerance"]:
                yield Difference(graph, name, difference, expected["tolerance"])


def add(path: str | os.PathLike[str]) -> None:
    """Adds a self-test to the package `path`, with the results of the installed PyTorch."""
    archive = Archive(Path(path))
    package = _open(archive)
    with export_errors.wrap_errors(f"{path}: no self-test can be added"):
        record = _make(package)
    archive.add_self_test(json.dumps(record))


def add_to_pair(path: Path, pair: Pair, reader: PackageReader) -> None:
    """Adds a self-test to a newly written pair that `reader` has loaded."""
    state = {entry.name: entry.tensor for entry in pair.state}
    examples = pair.parts[0].part.inputs
    package = RunnablePair(reader, pair.device, lambda: state, examples)
    Archive(path).add_self_test(json.dumps(_make(package)))


def _open(archive: Archive) -> Runnable:
    if archive.kind == Kind.PAIR:
        return RunnablePair.read(archive)
    if archive.kind == Kind.PROGRAM:
        return RunnableProgram(archive)
    raise ExportError(f"{archive.path}: {archive.kind.value}s have no self-test")


def _make(package: Runnable) -> dict[str, Any]:
    described, given, results = _choose(package)
    tolerances = _tolerances(results, _changes(package, given, results))
    return {
        "format": _FORMAT,
        "schema_version": _SCHEMA_VERSION,
        "torch_version": torch.__version__.partition("+")[0],
        "seed": SEED,
        "given": described,
        "graphs": [
            {
                "graph": result.graph,
                "role": result.role,
                "expected": {
                    name: self_test_tensors.sample(tensor, tolerances[result.graph, name])
                    for name, tensor in result.outputs.items()
                },
            }
            for result in results
        ],
    }


def _choose(package: Runnable) -> tuple[Given, Tensors, list[Result]]:
    """Returns the first candidate with finite results, or else the first one that runs."""
    found: list[tuple[Given, Tensors, list[Result]]] = []
    failures = []
    for described in package.candidates():
        given = _tensors(described, package.device)
        try:
            results = package.run(given, SEED)
        except (RuntimeError, IndexError) as error:
            failures.append(error)
            continue
        if all(map(_has_finite, _outputs(results).values())):
            return described, given, results
        found.append((described, given, results))
    if not found:
        reason = export_errors.describe_data_error(failures[0])
        raise NoSelfTest(f"the graphs reject generated values: {reason}") from failures[0]
    return found[0]


def _changes(package: Runnable, given: Tensors, results: list[Result]) -> dict[_Key, float]:
    """Returns the largest change of each output when the last bits of the inputs change."""
    expected = _outputs(results)
    largest = dict.fromkeys(expected, 0.0)
    for seed in _NUDGES:
        for key, tensor in _outputs(_run_nudged(package, given, seed)).items():
            change = differences.difference(tensor, expected[key])
            if math.isfinite(change):  # Else a value turned into NaN or infinity.
                largest[key] = max(largest[key], change)
    return largest


def _run_nudged(package: Runnable, given: Tensors, seed: int) -> list[Result]:
    try:
        return package.run(_nudged(given, seed), SEED)
    except (RuntimeError, IndexError):
        # The changed inputs are out of range, for example a probability above 1.
        return package.run(_nudged(given, seed, keep=("buffer", "input")), SEED)


def _nudged(given: Tensors, seed: int, keep: tuple[str, ...] = ()) -> Tensors:
    changed = {}
    for place, (name, tensor) in enumerate(given.items()):
        changed[name] = tensor
        if tensor.is_floating_point() and not name.startswith(keep):
            changed[name] = contiguous_copy(tensor)
            differences.nudge(changed[name], seed * 1000 + place)
    return changed


def _tolerances(results: list[Result], changes: dict[_Key, float]) -> dict[_Key, float]:
    outputs = _outputs(results)
    sizes = {key: differences.largest(tensor) for key, tensor in outputs.items()}
    gradients = [size for (_, name), size in sizes.items() if "_gradient/" in name]
    tolerances = {}
    for (graph, name), tensor in outputs.items():
        largest = sizes[graph, name]
        if "_gradient/" in name:
            # A gradient may be zero except for rounding, for example before batch norm.
            largest = max(largest, _GRADIENTS_SHARE * max(gradients))
        relative = _TOLERANCE.get(tensor.dtype, 0.0) * largest
        tolerances[graph, name] = max(relative, _AMPLIFICATION * changes[graph, name])
    return tolerances


def _outputs(results: list[Result]) -> dict[_Key, torch.Tensor]:
    return {(each.graph, name): value for each in results for name, value in each.outputs.items()}


def _tensors(described: Given, device: torch.device) -> Tensors:
    return {
        name: self_test_tensors.read_tensor(record).to(device) for name, record in described.items()
    }


def _has_finite(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 0 or any(each.isfinite().any() for each in differences.chunks(tensor))
