"""Files of a model version, published atomically."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._export.serde.serialize import SerializeError
from torch.export.exported_program import ExportedProgram
from torch.export.pt2_archive._package import package_pt2

from braid._export import ExportError
from braid.exporter import export_errors
from braid.exporter.formats import pt2, safetensors
from braid.exporter.formats.pair import Pair
from braid.exporter.formats.precisions import MODEL_PRECISION, PrecisionError


def write_pair(folder: Path, pair: Pair) -> None:
    """Writes model.pt2 and model.safetensors. Raises ExportError for graphs it cannot write."""
    try:
        package_pt2(
            str(folder / "model.pt2"),
            exported_programs=_exported(pair),
            extra_files={"train.json": json.dumps(pair.train_json())},
        )
    except SerializeError as error:
        raise write_error(pair, error) from error
    tensors = {entry.name: entry.tensor for entry in pair.state if entry.tied_to is None}
    safetensors.write(folder / "model.safetensors", tensors)


def _exported(pair: Pair) -> dict[str, ExportedProgram]:
    return {name: program.exported for name, program in pair.graphs().items()}


def write_error(pair: Pair, error: SerializeError) -> ExportError:
    """Returns a PrecisionError if the pair can be written without one of its precisions.

    Otherwise returns an ExportError.
    """
    for each in pair.parts[0].precisions:
        if each.name != MODEL_PRECISION and _goes_there_and_back(pair.without(each.name)):
            return PrecisionError(each.name, _reason(error))
    return ExportError(_reason(error))


def _goes_there_and_back(pair: Pair) -> bool:
    file = io.BytesIO()
    try:
        package_pt2(file, exported_programs=_exported(pair))
        file.seek(0)
        pt2.read(file)
    except SerializeError:
        return False
    return True


def _reason(error: SerializeError) -> str:
    cause = error.__cause__ or error
    if isinstance(cause, KeyError) and isinstance(cause.args[0], torch.dtype):
        return f"torch.export cannot write a graph with a tensor of {cause.args[0]}"
    return f"torch.export cannot write a graph: {export_errors.first_line(cause)}"


def next_version(model: Path) -> int:
    """Returns the highest existing version plus 1, or 1 for a model without versions."""
    if not model.is_dir():
        return 1
    return max((int(each.name) for each in model.iterdir() if _is_version(each)), default=0) + 1


def _is_version(path: Path) -> bool:
    return path.is_dir() and path.name.isascii() and path.name.isdigit()


@contextmanager
def temporary_folder(model: Path) -> Iterator[Path]:
    """Creates a folder next to the model, and removes it on exit.

    It is on the model's file system, and the server ignores its name.
    """
    parent = model.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{model.name}.", dir=parent))
    except OSError as error:
        raise ExportError(f"{parent}: cannot be written to: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(
    written: Path,
    model: Path,
    config: str | None,
    assign: Callable[[str], int] | None = None,
) -> Path:
    """Renames `written` to the model's next version.

    config: text of a config.pbtxt to write first, or None.
    assign: returns the version number for a model; None: the number after the highest.
    """
    version = next_version(model) if assign is None else assign(model.name)
    existed = model.is_dir()
    model.mkdir(exist_ok=True)
    try:
        if config is not None:
            beside_it = written.parent / "config.pbtxt"
            beside_it.write_text(config, "utf-8")
            os.replace(beside_it, model / "config.pbtxt")
        return _rename(written, model, version, assign)
    except OSError as error:
        if config is not None:
            (model / "config.pbtxt").unlink(missing_ok=True)
        if not existed:
            model.rmdir()
        raise ExportError(f"{model}: cannot be written to: {error.strerror}") from error


def _rename(
    written: Path, model: Path, version: int, assign: Callable[[str], int] | None
) -> Path:
    while True:
        target = model / str(version)
        try:
            os.rename(written, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # Another process published this version first.
            version = version + 1 if assign is None else assign(model.name)
        else:
            return target
