"""Receives a file in pieces, and puts it in its place whole or not at all."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import IO, Any

from braid.errors import DataLoss

Receive = Callable[[Iterable[Any]], int]


def to_path(path: str | os.PathLike[str], call: Callable[[Receive], int]) -> int:
    """Has `call` receive the file, then gives it the name `path`. Returns its size.

    It is written beside `path` and renamed, so that `path` is never half a file.
    """
    target = pathlib.Path(path)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            size = call(lambda pieces: receive(file, pieces))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp's is for the owner alone.
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return size


def to_file(file: IO[bytes], call: Callable[[Receive], int]) -> int:
    """Has `call` receive the file, then writes it to `file`. Returns its size."""
    with tempfile.TemporaryFile() as whole:
        size = call(lambda pieces: receive(whole, pieces))
        whole.seek(0)
        shutil.copyfileobj(whole, file, 1 << 20)
    return size


def receive(file: IO[bytes], pieces: Iterable[Any]) -> int:
    """Fills `file`, from its beginning, with braid.v1.DownloadModelResponse pieces.

    Returns the size. DataLoss if pieces are missing or out of place.
    """
    file.seek(0)
    file.truncate()
    filled = total = 0
    for piece in pieces:
        total = piece.total_bytes
        if piece.offset != filled:
            raise DataLoss(f"bytes from {piece.offset} came where those from {filled} were due")
        file.write(piece.data)
        filled += len(piece.data)
    if filled != total or total == 0:
        raise DataLoss(f"the stream ended after {filled} of {total} bytes")
    return total


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
