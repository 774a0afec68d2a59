"""Uploads of datasets: local files, their checksums, and the calls."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from braid import errors
from braid._channel import Channel, remaining
from braid._protocol import DATA

_PIECE_BYTES = 1 << 20
_SUFFIXES = (".parquet", ".arrow", ".csv", ".npy", ".npz", ".safetensors")
_MAGICS = (b"PAR1", b"ARROW1", b"\0\0")  # Parquet, Arrow IPC, IDX
_RESULTS = {1: "stored", 2: "replaced", 3: "unchanged"}

# Called with a stage, "checksums" or "upload", the completed bytes and the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class StoredDataset:
    """Dataset that `Datasets.put` has uploaded.

    path: path for jobs and for `Datasets.get`.
    result: "stored"; "replaced", if another dataset had the name; "unchanged", if an equal one did.
    files, bytes: number of files and size of the dataset.
    """

    path: str
    result: str
    files: int
    bytes: int


@dataclass(frozen=True)
class _File:
    """path: of the local file. name: in the dataset; empty if the dataset is this file."""

    path: Path
    name: str
    bytes: int
    sha256: str


def put(
    channel: Channel,
    path: str | os.PathLike[str],
    name: str,
    overwrite: bool,
    progress: Progress | None,
    timeout: float | None,
) -> StoredDataset:
    """Implements `Datasets.put`."""
    report = progress or (lambda _stage, _done, _total: None)
    deadline = channel.deadline(timeout)
    found = _list(Path(path))
    if found[0][1] == "":
        _check_format(found[0][0], name)
    files = _read(found, report)
    total = sum(file.bytes for file in files)
    start, upload = DATA["StartDatasetUpload"], DATA["PutDataset"]
    request = start.request(dataset=name, overwrite=overwrite)
    for file in files:
        request.files.add(path=file.name, bytes=file.bytes, sha256=file.sha256)
    payload = request.SerializeToString()
    furthest, attempt = -1, 0
    while True:
        # Fails soon for a wrong address. Waits for a server that has answered before.
        attempts = None if furthest < 0 else math.inf
        started = channel.call(start, payload, remaining(deadline), attempts=attempts)
        if started.complete:
            report("upload", total, total)
            return StoredDataset(started.path, "unchanged", len(files), total)
        received = sum(started.received_bytes)
        # Counts the attempts since the last one that transferred something.
        attempt = 1 if received > furthest else attempt + 1
        furthest = max(furthest, received)
        report("upload", received, total)
        requests = _requests(files, started, report, total)
        try:
            stored = channel.call_feeding(upload, requests, remaining(deadline))
            channel.outage.on_reply()
            return StoredDataset(stored.path, _RESULTS[stored.result], len(files), total)
        # NotFound: another call has completed the upload since the start.
        except (errors.Unavailable, errors.NotFound) as failure:
            backoff = channel.retry.backoff(attempt)
            if attempt >= channel.retry.attempts or backoff >= remaining(deadline):
                raise
            channel.outage.on_wait(failure)
            time.sleep(backoff)


def _list(path: Path) -> list[tuple[Path, str]]:
    """Returns the files of a dataset and their names in it, sorted by name."""
    if path.is_file():
        return [(path, "")]
    if not path.is_dir():
        raise ValueError(f"path: '{path}' does not exist (expected a file or folder)")
    files = sorted(_walk(path, ""), key=lambda file: file[1])
    if not files:
        raise ValueError(
            f"path: '{path}' has no files (names that start with '.' do not count)"
        )
    return files


def _check_format(path: Path, name: str) -> None:
    """Raises ValueError if no server could read the file as the dataset `name`.

    A server stores any file and first looks for a format when a dataset is opened. Without this
    check, a wrong file would be found after the whole upload.
    """
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(_MAGICS) or name.endswith(_SUFFIXES):
        return
    if head.startswith(b"\x1f\x8b") and name.endswith(".gz") and "idx" in name:
        return
    if path.name.endswith(_SUFFIXES):
        raise ValueError(
            f"name: '{name}' has no suffix of a format (expected the file's, '{path.suffix}')"
        )
    raise ValueError(
        f"path: '{path}' has an unknown format (expected a folder of images, or a file of Parquet, "
        "Arrow IPC, CSV, .npy, .npz, .safetensors or IDX)"
    )


def _walk(folder: Path, prefix: str) -> Iterator[tuple[Path, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):  # A server does not read them.
                continue
            path, name = Path(entry.path), f"{prefix}{entry.name}"
            if entry.is_symlink():
                raise ValueError(f"path: '{path}' is a symbolic link (expected files and folders)")
            if entry.is_dir():
                yield from _walk(path, f"{name}/")
            elif entry.is_file():
                yield path, name
            else:
                raise ValueError(f"path: '{path}' is neither a file nor a folder")


def _read(files: Sequence[tuple[Path, str]], report: Progress) -> list[_File]:
    """Reads the files and returns their sizes and checksums."""
    total, done = sum(path.stat().st_size for path, _ in files), 0
    found = []
    for path, name in files:
        sha256, size = hashlib.sha256(), 0
        report("checksums", done, total)
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                sha256.update(piece)
                size += len(piece)
                report("checksums", done + size, total)
        done += size
        found.append(_File(path, name, size, sha256.hexdigest()))
    return found


def _requests(
    files: Sequence[_File], started: Any, report: Progress, total: int
) -> Iterator[bytes]:
    """Yields the serialized requests with the pieces that the server does not have."""
    request = DATA["PutDataset"].request
    # Names the upload, even if the server already has all bytes.
    yield request(upload=started.upload).SerializeToString()
    done = sum(started.received_bytes)
    for index, file in enumerate(files):
        offset = started.received_bytes[index]
        if offset == file.bytes:
            continue
        with file.path.open("rb") as opened:
            opened.seek(offset)
            while offset < file.bytes:
                data = opened.read(min(_PIECE_BYTES, file.bytes - offset))
                if not data:
                    raise ValueError(
                        f"path: '{file.path}' became shorter during the upload (expected "
                        f"{file.bytes} bytes)"
                    )
                piece = request(file=index, offset=offset, data=data)
                yield piece.SerializeToString()
                offset += len(data)
                done += len(data)
                report("upload", done, total)
