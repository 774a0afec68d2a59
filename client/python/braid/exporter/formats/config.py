"""config.pbtxt of a model: written if missing, compared with the package if present."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from braid import _protocol
from braid._export import ExportError

MAX_BATCH_SIZE = 256  # The server's default for a TorchScript model without config.pbtxt.
# Parameter of config.pbtxt. "assumed" declares batches although independence of rows is not shown.
# "dependent" declares dim 0 as the batch although each request runs alone, which training needs.
# Parameter with the dim of the batch, if it is not dim 0: "batch_dim." and an input or output.
_BATCH_DIM = "batch_dim."
ROW_INDEPENDENCE, ASSUMED, DEPENDENT = "row_independence", "assumed", "dependent"

_ModelConfig = _protocol.message("inference.ModelConfig")


class Batching(enum.Enum):
    """Role of dim 0 in the server."""

    MERGED = "batch; the server merges requests and splits them"
    WHOLE = "batch; each request runs alone and whole"
    NONE = "no batch"


@dataclass(frozen=True)
class Tensor:
    """Input or output.

    dims: without the batch dim if batching is MERGED; -1 means any size.
    batch_dim: dim of the batch for clients and the model.
    """

    name: str
    datatype: str
    dims: list[int]
    batch_dim: int = 0


def tensor(
    name: str,
    datatype: str,
    shapes: Sequence[Sequence[int]],
    batching: Batching,
    batch_dim: int = 0,
) -> Tensor:
    """Returns the declaration of an input or output, from its shapes for one or more batches.

    shapes: with the batch as dim 0.

    A size that differs between `shapes` becomes -1. If dim 0 is the batch, a tensor without dims
    counts as one number for the batch. Raises ExportError if the number of dims differs.
    """
    if batching != Batching.NONE:
        shapes = [shape or (1,) for shape in shapes]
    ranks = {len(shape) for shape in shapes}
    if len(ranks) > 1:
        raise ExportError(
            f"output '{name}' has {min(ranks)} dims for some batches and {max(ranks)} for others "
            f"(expected the same number for all)"
        )
    # config.pbtxt cannot declare a size of 0.
    dims = [(sizes[0] or -1) if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes)]
    if batching == Batching.MERGED:
        return Tensor(name, datatype, dims[1:], batch_dim)
    if batching == Batching.WHOLE:
        dims = [*dims[1 : batch_dim + 1], -1, *dims[batch_dim + 1 :]]
    return Tensor(name, datatype, dims, batch_dim)


def input_tensor(
    name: str, datatype: str, row: Sequence[int], batching: Batching, batch_dim: int = 0
) -> Tensor:
    """Returns the declaration of an input. row: shape without the batch."""
    return tensor(name, datatype, [(-1, *row)], batching, batch_dim)


@dataclass(frozen=True)
class Declared:
    """Batch settings of a config.pbtxt, and sizes that clients choose.

    any_size: dims of each input, other than the batch, for which clients may send any size.
    """

    max_batch_size: int
    row_independence: str
    any_size: Mapping[str, Sequence[int]] = field(default_factory=dict)


def read_declared(path: Path) -> Declared | None:
    """Reads the settings, or returns None if there is no file.

    Raises ExportError if the file is not valid.
    """
    if not path.exists():
        return None
    config = _read(path)
    any_size = {}
    for each in config.input:
        dims = _dims(each)
        if config.max_batch_size == 0 and dims:
            del dims[min(_declared_batch_dim(path, config, each.name), len(dims) - 1)]
        any_size[each.name] = [dim for dim, size in enumerate(dims, 1) if size == -1]
    return Declared(
        config.max_batch_size, config.parameters[ROW_INDEPENDENCE].string_value, any_size
    )


def to_text(platform: str, inputs: list[Tensor], outputs: list[Tensor], batching: Batching) -> str:
    """Returns the text of a config.pbtxt. platform: Triton's name, empty for a pair."""
    lines = [f'platform: "{platform}"'] if platform else []
    lines.append(f"max_batch_size: {MAX_BATCH_SIZE if batching == Batching.MERGED else 0}")
    for field, tensors in (("input", inputs), ("output", outputs)):
        entries = ",\n".join(
            f"  {{ name: {_quoted(each.name)} data_type: TYPE_{each.datatype} "
            f"dims: [ {', '.join(map(str, each.dims))} ] }}"
            for each in tensors
        )
        lines.append(f"{field} [\n{entries}\n]")
    if batching == Batching.WHOLE:
        lines.append(
            f'parameters {{ key: "{ROW_INDEPENDENCE}" value {{ string_value: "{DEPENDENT}" }} }}'
        )
    batch_dims = {each.name: each.batch_dim for each in (*inputs, *outputs) if each.batch_dim}
    for name, dim in batch_dims.items():
        key = _quoted(_BATCH_DIM + name)
        lines.append(f'parameters {{ key: {key} value {{ string_value: "{dim}" }} }}')
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


def _dims(declared: Any) -> list[int]:
    """Returns the shape that the model takes or returns, without the batch dim if batched."""
    return list(declared.reshape.shape if declared.HasField("reshape") else declared.dims)


def _declared_batch_dim(path: Path, config: Any, name: str) -> int:
    key = _BATCH_DIM + name
    value = config.parameters[key].string_value if key in config.parameters else "0"
    if not value.isdecimal():
        raise ExportError(f'{path}: parameters["{key}"]: \'{value}\' (expected a dim)')
    return int(value)


def check_matches(
    path: Path, platform: str, filename: str, inputs: list[Tensor], outputs: list[Tensor]
) -> None:
    """Raises ExportError if the config.pbtxt at `path` contradicts the package.

    Servers that poll the repository would fail to load the version, or clients would fail.
    filename: the package's file in the version's folder.
    """
    config = _read(path)
    if config.default_model_filename not in ("", filename):
        raise ExportError(
            f"{path}: default_model_filename: '{config.default_model_filename}' "
            f"(expected '{filename}' or none)"
        )
    if config.platform and config.platform != platform:
        raise ExportError(
            f"{path}: platform: '{config.platform}' "
            + (f"(expected '{platform}')" if platform else "(expected none for a pair)")
        )
    _check_tensors(path, config, "input", inputs, any_size_fits=False)
    _check_tensors(path, config, "output", outputs, any_size_fits=True)


def check_example(
    path: Path,
    field: str,
    batch_dim: Callable[[str], int],
    *namings: Mapping[str, tuple[str, list[int]]],
) -> None:
    """Raises ExportError if the config.pbtxt at `path` contradicts an example, before the export.

    field: "input" or "output". namings: datatype and shape by name, once for each way to name the
    tensors; one must fit. Shapes have the batch as dim 0. A dim of -1 fits any size. batch_dim:
    returns the dim of the batch for clients and the model.
    """
    config = _read(path)
    declared = sorted(each.name for each in getattr(config, field))
    tensors = next((each for each in namings if sorted(each) == declared), namings[0])
    batched = config.max_batch_size > 0
    whole = batched or config.parameters[ROW_INDEPENDENCE].string_value == DEPENDENT
    expected = []
    for name, (datatype, shape) in tensors.items():
        made = tensor(
            name,
            datatype,
            [shape],
            Batching.MERGED if batched else Batching.WHOLE if whole else Batching.NONE,
            batch_dim(name),
        )
        dims = made.dims
        if not whole:  # Any dim of an output may depend on the number of rows.
            dims = [-1, *dims[1:]] if field == "input" else [-1] * len(dims)
        expected.append(replace(made, dims=dims))
    _check_tensors(path, config, field, expected, any_size_fits=True)


def _check_tensors(
    path: Path, config: Any, field: str, expected: list[Tensor], any_size_fits: bool
) -> None:
    declared = {each.name: each for each in getattr(config, field)}
    _check_names(path, field, [each.name for each in expected], list(declared))
    for each in expected:
        datatype = _ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]
        data_type = datatype.values_by_number[declared[each.name].data_type].name
        if data_type != f"TYPE_{each.datatype}":
            raise _mismatch(
                f"{path}: {field} '{each.name}': data_type {data_type}, but the model has "
                f"TYPE_{each.datatype}"
            )
        batch_dim = _declared_batch_dim(path, config, each.name)
        if batch_dim != each.batch_dim:
            raise _mismatch(
                f"{path}: {field} '{each.name}': the batch is dim {batch_dim}, but the model has "
                f"it as dim {each.batch_dim} (see braid.export's `batch_dim`)"
            )
        _check_dims(
            path, field, each, declared[each.name], config.max_batch_size > 0, any_size_fits
        )


def _mismatch(message: str) -> ExportError:
    return ExportError(
        f"{message}: change config.pbtxt and its clients, change the model, or export to the "
        f"folder of another model"
    )


def _check_names(path: Path, field: str, expected: list[str], declared: list[str]) -> None:
    if sorted(expected) != sorted(declared):
        raise _mismatch(
            f"{path}: {field}: names {', '.join(declared) or 'none'}, but the model has "
            f"{', '.join(expected)}"
        )


def _check_dims(
    path: Path, field: str, expected: Tensor, declared: Any, batched: bool, any_size_fits: bool
) -> None:
    """any_size_fits: a declared -1 fits a fixed size, unlike for inputs, of which clients send any."""
    dims = _dims(declared)
    fits = len(dims) == len(expected.dims) and all(
        size in (-1, dim) or (dim == -1 and any_size_fits) for dim, size in zip(dims, expected.dims)
    )
    if not fits:
        promised = not any_size_fits and any(
            dim == -1 != size for dim, size in zip(dims, expected.dims)
        )
        hints = [
            *(["-1: any size"] if -1 in (*dims, *expected.dims) else []),
            *(["braid.export's `dynamic` makes a dim take any size"] if promised else []),
            *([] if batched else ["with max_batch_size 0, dims include the batch"]),
        ]
        raise _mismatch(
            f"{path}: {field} '{expected.name}': dims {dims}, but the model has "
            f"{list(expected.dims)}" + (f" ({'; '.join(hints)})" if hints else "")
        )
