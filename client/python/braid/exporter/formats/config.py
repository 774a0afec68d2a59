"""The config.pbtxt of a model: written where there is none, compared where there is one."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from braid import _protocol
from braid._export import ExportError

MAX_BATCH_SIZE = 256  # What the server takes where a TorchScript model has no config.pbtxt.
# The parameter by which a configuration declares batches of rows that are not proven independent,
# or that dim 0 is the batch although each request runs alone, so that the model can be trained.
ROW_INDEPENDENCE, ASSUMED, DEPENDENT = "row_independence", "assumed", "dependent"

_ModelConfig = _protocol.message("inference.ModelConfig")


class Batching(enum.Enum):
    """Role of dim 0 in the server."""

    MERGED = "a batch, of the rows of several requests or of some of one"
    WHOLE = "a batch, of one request"
    NONE = "no batch"


@dataclass(frozen=True)
class Tensor:
    """An input or output. dims: without the batch if batches are merged; -1 is of any size."""

    name: str
    datatype: str
    dims: list[int]


def tensor(name: str, datatype: str, shapes: Sequence[Sequence[int]], batching: Batching) -> Tensor:
    """shapes: with the batch, of one or more batches; a size that differs becomes -1. Where dim 0
    is a batch, what has no dims is one number for it.

    ExportError if there are now more, now fewer dims.
    """
    if batching != Batching.NONE:
        shapes = [shape or (1,) for shape in shapes]
    ranks = {len(shape) for shape in shapes}
    if len(ranks) > 1:
        raise ExportError(
            f"output '{name}' has {min(ranks)} dims for some batches and {max(ranks)} for others "
            f"(expected the same for all)"
        )
    # A configuration has no size of 0.
    dims = [(sizes[0] or -1) if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes)]
    if batching == Batching.MERGED:
        return Tensor(name, datatype, dims[1:])
    return Tensor(name, datatype, [-1, *dims[1:]] if batching == Batching.WHOLE else dims)


def input_tensor(name: str, datatype: str, row: Sequence[int], batching: Batching) -> Tensor:
    """row: the shape of one row."""
    return tensor(name, datatype, [(-1, *row)], batching)


@dataclass(frozen=True)
class Declared:
    """The settings of a config.pbtxt that concern batches."""

    max_batch_size: int
    row_independence: str


def read_declared(path: Path) -> Declared | None:
    """None if there is no file at `path`; ExportError if it cannot be read."""
    if not path.exists():
        return None
    config = _read(path)
    return Declared(config.max_batch_size, config.parameters[ROW_INDEPENDENCE].string_value)


def to_text(platform: str, inputs: list[Tensor], outputs: list[Tensor], batching: Batching) -> str:
    """platform: as in Triton; empty for the pair, which has none there."""
    lines = [f'platform: "{platform}"'] if platform else []
    lines.append(f"max_batch_size: {MAX_BATCH_SIZE if batching == Batching.MERGED else 0}")
    for field, tensors in (("input", inputs), ("output", outputs)):
        said = ",\n".join(
            f"  {{ name: {_quoted(each.name)} data_type: TYPE_{each.datatype} "
            f"dims: [ {', '.join(map(str, each.dims))} ] }}"
            for each in tensors
        )
        lines.append(f"{field} [\n{said}\n]")
    if batching == Batching.WHOLE:
        lines.append(
            f'parameters {{ key: "{ROW_INDEPENDENCE}" value {{ string_value: "{DEPENDENT}" }} }}'
        )
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return '"' + text_format.text_encoding.CEscape(name, as_utf8=True) + '"'


def _read(path: Path) -> Any:
    config = _ModelConfig()
    try:
        text_format.Parse(path.read_text("utf-8-sig"), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ExportError(f"{path}: {error}") from error
    return config


def check_matches(path: Path, platform: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """ExportError if the config.pbtxt at `path` says something else of the model."""
    config = _read(path)
    if config.platform and config.platform != platform:
        raise ExportError(
            f"{path}: platform is '{config.platform}', but the package's "
            + (f"would be '{platform}'" if platform else "has none: remove it")
        )
    for field, mine, theirs in (
        ("input", inputs, config.input),
        ("output", outputs, config.output),
    ):
        _check_names(path, field, [each.name for each in mine], [each.name for each in theirs])
        there = {each.name: each for each in theirs}
        for each in mine:
            datatype = _ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
            said = datatype.values_by_number[there[each.name].data_type].name
            if said != f"TYPE_{each.datatype}":
                raise ExportError(
                    f"{path}: {field} '{each.name}' has data_type {said}, "
                    f"the model TYPE_{each.datatype}"
                )
            _check_dims(path, field, each, there[each.name], config.max_batch_size > 0)


def _check_names(path: Path, field: str, mine: list[str], theirs: list[str]) -> None:
    if sorted(mine) != sorted(theirs):
        raise ExportError(
            f"{path}: its {field}s are {', '.join(theirs) or 'none'}, the model's {', '.join(mine)}"
        )


def _check_dims(path: Path, field: str, mine: Tensor, theirs, batched: bool) -> None:
    dims = list(theirs.reshape.shape) if theirs.HasField("reshape") else list(theirs.dims)
    fits = len(dims) == len(mine.dims) and all(
        said in (-1, size) or size == -1 for said, size in zip(dims, mine.dims)
    )
    if not fits:
        raise ExportError(
            f"{path}: {field} '{mine.name}' has dims {dims}, the model {list(mine.dims)}"
            + ("" if batched else ", which include the batch, as max_batch_size is 0")
        )
