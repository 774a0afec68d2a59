"""The config.pbtxt of a model: written where there is none, compared where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format

from braid import _protocol
from braid._export import ExportError

MAX_BATCH_SIZE = 256  # What the server takes where a TorchScript model has no config.pbtxt.

_ModelConfig = _protocol.message("inference.ModelConfig")


@dataclass(frozen=True)
class Tensor:
    """An input or output. dims: without the batch; -1 is of any size."""

    name: str
    datatype: str
    dims: list[int]


def text(platform: str, inputs: list[Tensor], outputs: list[Tensor]) -> str:
    """platform: as in Triton; empty for the pair, which has none there."""
    lines = [f'platform: "{platform}"'] if platform else []
    lines.append(f"max_batch_size: {MAX_BATCH_SIZE}")
    for field, tensors in (("input", inputs), ("output", outputs)):
        said = ",\n".join(
            f"  {{ name: {_quoted(each.name)} data_type: TYPE_{each.datatype} "
            f"dims: [ {', '.join(map(str, each.dims))} ] }}"
            for each in tensors
        )
        lines.append(f"{field} [\n{said}\n]")
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return '"' + text_format.text_encoding.CEscape(name, as_utf8=True) + '"'


def check_agrees(
    path: Path, platform: str, inputs: list[Tensor], outputs: list[Tensor]
) -> None:
    """ExportError if the config.pbtxt at `path` says something else of the model."""
    config = _ModelConfig()
    try:
        text_format.Parse(path.read_text("utf-8"), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ExportError(f"{path}: {error}") from error
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
            _check_dims(path, field, each, there[each.name])
    if config.max_batch_size == 0:
        raise ExportError(f"{path}: max_batch_size is 0, but the package takes batches")


def _check_names(path: Path, field: str, mine: list[str], theirs: list[str]) -> None:
    if sorted(mine) != sorted(theirs):
        raise ExportError(
            f"{path}: its {field}s are {', '.join(theirs) or 'none'}, the model's {', '.join(mine)}"
        )


def _check_dims(path: Path, field: str, mine: Tensor, theirs) -> None:
    dims = list(theirs.reshape.shape) if theirs.HasField("reshape") else list(theirs.dims)
    fits = len(dims) == len(mine.dims) and all(
        said in (-1, size) or size == -1 for said, size in zip(dims, mine.dims)
    )
    if not fits:
        raise ExportError(
            f"{path}: {field} '{mine.name}' has dims {dims}, the model {list(mine.dims)}"
        )
