"""Atomic download of a file in pieces."""

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
