"""Atomic download of a model, as a file or as the folder of a version."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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

# Parts of peft's parameter names. A PeftModel has the base model at base_model.model.
_PEFT_MODEL = re.compile(r"(?:^|\.)(?P<path>base_model\.model\.)")
_LORA = re.compile(r"\.(lora_\w+)\.[^.]+(\.\w+)?$")
_MAGNITUDE = re.compile(r"\.(lora_magnitude_vector)\.[^.]+\.weight$")  # DoRA
_MODULE_TO_SAVE = re.compile(r"\.modules_to_save\.[^.]+\.")
_ADAPTER = re.compile(f"{_LORA.pattern}|{_MODULE_TO_SAVE.pattern}")


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


def download_trainable(
    file: str | os.PathLike[str] | IO[bytes], format: str | None, fetch: Fetch
) -> int:
    """Downloads the trained parameters to a path or a file object. Returns the size in bytes.

    Gives the parameters of a LoRA model of peft the names of peft's adapter_model.safetensors.
    format: "safetensors", or None for a path with this suffix or a file object.
    """
    is_path = isinstance(file, (str, os.PathLike))
    if format is None:
        format = format_of(file) if is_path else "safetensors"
    if format != "safetensors":
        problem = f"the format is '{format}'" if format else f"'{os.fspath(file)}' is a folder"
        raise ValueError(f"trainable_only: {problem} (expected safetensors)")
    with tempfile.TemporaryFile() as whole:
        fetch(format, lambda pieces: receive(whole, pieces))
        whole.seek(0)
        if not is_path:
            return _copy_with_peft_names(whole, file)
        with _replacing(file) as target:
            return _copy_with_peft_names(whole, target)


def _copy_with_peft_names(source: IO[bytes], target: IO[bytes]) -> int:
    """Copies a safetensors file and renames its tensors. Returns the size in bytes."""
    header = json.loads(source.read(int.from_bytes(source.read(8), "little")))
    names = _peft_names(header)
    text = json.dumps({names[name]: value for name, value in header.items()}).encode()
    text += b" " * (-len(text) % 8)  # aligns the data
    data = source.tell()
    target.write(len(text).to_bytes(8, "little") + text)
    shutil.copyfileobj(source, target, 1 << 20)
    return 8 + len(text) + source.tell() - data


def _peft_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the names in peft's files, by module name, if the names are of a LoRA model.

    peft leaves out the name of the adapter: "base_model.model.fc.lora_A.default.weight" becomes
    "base_model.model.fc.lora_A.weight". Changes no name if two would become the same.
    """
    kept = {name: name for name in names}
    if not any(_PEFT_MODEL.search(name) and _ADAPTER.search(name) for name in kept):
        return kept
    renamed = {}
    for name in kept:
        inside = _PEFT_MODEL.search(name)
        path = name[inside.start("path") :] if inside else name
        path = _MODULE_TO_SAVE.sub(".", path)
        path = _MAGNITUDE.sub(r".\1", path)
        renamed[name] = _LORA.sub(r".\1\2", path)
    return renamed if len(set(renamed.values())) == len(renamed) else kept


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


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yields a file that is renamed to `path` at the end.

    It is in the same folder, so `path` is never incomplete.
    """
    target = pathlib.Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp permits only the owner.
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def to_path(path: str | os.PathLike[str], call: Callable[[Receive], int]) -> int:
    """Downloads a file with `call` and renames it to `path`. Returns the size in bytes."""
    with _replacing(path) as file:
        return call(lambda pieces: receive(file, pieces))


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
