"""Datasets on the server: files and folders in its --data_root and --dataset_root, and in S3."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from braid import _put_dataset, errors
from braid._channel import Channel
from braid._protocol import DATA
from braid._put_dataset import Progress, StoredDataset as StoredDataset

_MAX_ROWS = 1000


@dataclass(frozen=True)
class Column:
    """Column of a dataset.

    type: in Arrow's notation, such as "int64" or "fixed_size_list<item: float>[32]".
    datatype: that of the column as a tensor, such as "FP32"; empty if it cannot be one.
    shape: of one row as a tensor; () for a number; -1: lists whose length may differ.
    """

    name: str
    type: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Dataset:
    """Columns and rows of a dataset.

    format: "Parquet", "Arrow IPC", "CSV", "arrays" or "images".
    rows: None for CSV, whose rows can only be counted by reading them.
    """

    path: str
    format: str
    columns: tuple[Column, ...]
    rows: int | None


@dataclass(frozen=True)
class DatasetEntry:
    """File or folder in a folder of the server. bytes: size of a file."""

    name: str
    is_folder: bool
    bytes: int


@dataclass(frozen=True)
class DatasetPreview:
    """First rows of a dataset.

    rows: values by column; lists for tensors, None for NaN and infinite numbers, text for dates.
    """

    dataset: Dataset
    rows: list[dict[str, Any]]


class Datasets:
    """Datasets of a server, from `Client.data`. Thread-safe.

    A dataset is a file or a folder: Parquet, Arrow IPC, CSV, .npy, .npz, safetensors, IDX or
    images. Paths are on the server, relative to the first --data_root in which they exist, then to
    --dataset_root, or s3://BUCKET/KEY. Raises NotFound if there is no such path, and
    InvalidArgument for a path outside of --data_root, --dataset_root and --s3_allow. `timeout` is
    in seconds and includes retries; None means the client's timeout.
    """

    def __init__(self, channel: Channel) -> None:
        """Internal: use `Client.data`."""
        self._channel = channel

    def list_datasets(
        self, folder: str = "", *, timeout: float | None = None
    ) -> list[DatasetEntry]:
        """Lists the folders, and the files of known formats, in a folder, sorted by name.

        folder: default: all folders of --data_root and --dataset_root.
        """
        method = DATA["ListDatasets"]
        reply = self._channel.call(method, method.request(directory=folder), timeout)
        return [DatasetEntry(each.name, each.is_directory, each.bytes) for each in reply.entries]

    def get(self, path: str, *, timeout: float | None = None) -> Dataset:
        """Returns the columns of a dataset and its number of rows, which is unknown for CSV."""
        method = DATA["GetDataset"]
        return _dataset(self._channel.call(method, method.request(path=path), timeout).dataset)

    def preview(
        self,
        path: str,
        *,
        columns: Sequence[str] = (),
        rows: int = 10,
        timeout: float | None = None,
    ) -> DatasetPreview:
        """Returns the first rows of a dataset, fewer if they take more than 4 MiB.

        columns: in the order of the result; empty: all.
        rows: from 1 to 1000.
        """
        if isinstance(columns, str):
            raise ValueError(f"columns: {columns!r} (expected a list, such as [{columns!r}])")
        if not 1 <= rows <= _MAX_ROWS:
            raise ValueError(f"rows: {rows} (expected 1 to {_MAX_ROWS})")
        method = DATA["PreviewDataset"]
        request = method.request(path=path, columns=columns, rows=rows)
        reply = self._channel.call(method, request, timeout)
        return DatasetPreview(_dataset(reply.dataset), [json.loads(row) for row in reply.rows])

    def put(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
        timeout: float | None = math.inf,
    ) -> StoredDataset:
        """Uploads a local file or folder to a server with --dataset_root, as the dataset `name`.

        Continues after a broken connection or a restart of the server, and after an earlier call
        that was interrupted, with the bytes that the server does not have yet. Returns at once if
        the server has an equal dataset. The dataset appears when all of its files are verified.

        path: names in a folder that start with '.' are skipped; symbolic links are errors.
        name: up to 128 letters, digits, '_', '-' and '.'; no '/'. Keep the suffix of a file:
            "train.parquet".
        overwrite: replaces a different dataset of this name, atomically.
        progress: called with "checksums" or "upload", the completed bytes and the total.
        timeout: in seconds; default: no limit.

        Raises AlreadyExists if another dataset has the name, ResourceExhausted if the server's
        quota or disk has no room, Aborted if a later call uploads the same files, DataLoss if a
        file changed meanwhile, and ValueError for a path that cannot be uploaded.
        """
        return _put_dataset.put(self._channel, path, name, overwrite, progress, timeout)

    def delete(self, name: str, *, timeout: float | None = None) -> None:
        """Deletes a dataset in the server's --dataset_root.

        name: or the path that `put` returned.

        Raises FailedPrecondition if a job that has not ended reads it, and NotFound if there is
        none.
        """
        method = DATA["DeleteDataset"]
        try:
            self._channel.call(method, method.request(dataset=name), timeout)
        except errors.NotFound as error:
            if error.attempts == 1:
                raise
            # An earlier attempt may have deleted it, although its reply was lost.


def _dataset(proto: Any) -> Dataset:
    return Dataset(
        path=proto.path,
        format=proto.format,
        columns=tuple(
            Column(each.name, each.type, each.datatype, tuple(each.shape))
            for each in proto.columns
        ),
        rows=proto.rows if proto.HasField("rows") else None,
    )
