"""Atomic download of a model, as a file or as the folder of a version."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from typing import IO, Any

from braid.errors import DataLoss, InvalidArgument

Receive = Callable[[Iterable[Any]], int]
# Downloads the model in a format, in pieces that it passes to a Receive. Returns the size in bytes.
Fetch = Callable[[str, Receive], int]

_FORMATS = {".pt": "torchscript", ".safetensors": "safetensors", ".pt2": "package"}
# By the format that a kind of model rejects: the kind, and what fits it.
_KINDS = {
    "torchscript": (
        "an exported pair",
        ".safetensors for the weights, .pt2 for the graphs, or a folder for both",
    ),
    "package": ("a TorchScript module", ".pt for the module or .safetensors for the weights"),
}


def download(
    file: str | os.PathLike[str] | IO[bytes], format: str | None, model: str, fetch: Fetch
) -> int:
    """Downloads a model to a path or a file object. Returns the size in bytes.

    format: None: the one of the path's suffix, or what the model has.
    model: name of the model, for messages.
    """
    if not isinstance(file, (str, os.PathLike)):
        receive = partial(to_file, file)
        return receive(partial(fetch, format)) if format else _first_fitting(receive, fetch)
    if format:
        return to_path(file, partial(fetch, format))
    format = format_of(file)
    if format is None:
        return _to_folder(pathlib.Path(file), fetch)
    try:
        return to_path(file, partial(fetch, format))
    except InvalidArgument as error:
        if error.field != "format":
            raise
        kind, expected = _KINDS[format]
        problem = f"model {model!r} is {kind} (expected the suffix {expected})"
        raise InvalidArgument(
            f"file: '{os.fspath(file)}': {problem}", (("file", problem),), error.attempts
        ) from None


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Returns the format for a path's suffix; None: a folder.

    Raises ValueError for an unknown suffix, unless the folder exists.
    """
    target = pathlib.Path(path)
    if target.is_dir() or not target.suffix:
        return None
    if target.suffix not in _FORMATS:
        raise ValueError(
            f"file: '{target}': unknown suffix (expected {', '.join(_FORMATS)} or a folder; other "
            "suffixes need `format`)"
        )
    return _FORMATS[target.suffix]


def _first_fitting(receive: Callable[[Callable[[Receive], int]], int], fetch: Fetch) -> int:
    """Downloads the module of a TorchScript model, or the weights of a pair."""
    try:
        return receive(partial(fetch, "torchscript"))
    except InvalidArgument as error:
        if error.field != "format":
            raise
    return receive(partial(fetch, "safetensors"))


def _to_folder(folder: pathlib.Path, fetch: Fetch) -> int:
    """Downloads the files of a version to a new or an empty folder. Returns their size in bytes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        problem = "not empty (expected a new or an empty folder)"
        raise FileExistsError(errno.EEXIST, problem, str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    filling = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        try:
            size = to_path(filling / "model.pt", partial(fetch, "torchscript"))
        except InvalidArgument as error:
            if error.field != "format":
                raise
            size = to_path(filling / "model.pt2", partial(fetch, "package"))
            size += to_path(filling / "model.safetensors", partial(fetch, "safetensors"))
        os.chmod(filling, 0o777 & ~_umask())  # mkdtemp permits only the owner.
        os.replace(filling, folder)
    except BaseException:
        shutil.rmtree(filling)
        raise
    return size


def to_path(path: str | os.PathLike[str], call: Callable[[Receive], int]) -> int:
    """Downloads a file with `call` and renames it to `path`. Returns the size in bytes.

    A temporary file in the same folder receives the data, so `path` is never incomplete.
    """
    target = pathlib.Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            size = call(lambda pieces: receive(file, pieces))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp permits only the owner.
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return size


def to_file(file: IO[bytes], call: Callable[[Receive], int]) -> int:
    """Downloads a file with `call`, then writes it to `file`. Returns the size in bytes."""
    with tempfile.TemporaryFile() as whole:
        size = call(lambda pieces: receive(whole, pieces))
        whole.seek(0)
        shutil.copyfileobj(whole, file, 1 << 20)
    return size


def receive(file: IO[bytes], pieces: Iterable[Any]) -> int:
    """Overwrites `file` with braid.v1.DownloadModelResponse pieces. Returns the size in bytes.

    Raises DataLoss if pieces are missing or out of order.
    """
    file.seek(0)
    file.truncate()
    filled = total = 0
    for piece in pieces:
        total = piece.total_bytes
        if piece.offset != filled:
            raise DataLoss(f"download: bytes from {piece.offset} (expected those from {filled})")
        file.write(piece.data)
        filled += len(piece.data)
    if filled != total or total == 0:
        raise DataLoss(f"download: the stream ended after {filled} of {total} bytes")
    return total


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
