"""Files of inputs and outputs: arrays, mapped into memory to read, and rows of bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from braid.cli import errors

if TYPE_CHECKING:
    import braid
    import numpy as np

FILE = "NAME=FILE.npy"
_ADVICE = "expected an array that numpy.save wrote"


def named_files(option: str, arguments: Sequence[str]) -> dict[str, str]:
    """Returns the paths by name of NAME=FILE arguments. UsageError if one is malformed."""
    files: dict[str, str] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not (name and path):
            raise errors.usage(option, f"invalid value {argument!r}", f"expected {FILE}")
        if name in files:
            raise errors.usage(option, f"{name!r} is given twice", "expected one file for each")
        files[name] = path
    return files


def open_inputs(option: str, arguments: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the arrays by name of NAME=FILE.npy and NAME=@FILE arguments.

    Files with an @ are rows of bytes, in the order of the arguments. UsageError if an argument is
    malformed or its file cannot be read.
    """
    import numpy as np

    rows: dict[str, list[bytes]] = {}
    arrays: list[str] = []
    for argument in arguments:
        name, _, path = argument.partition("=@")
        if name and path and "=" not in name:
            rows.setdefault(name, []).append(_read_bytes(path))
        else:
            arrays.append(argument)
    inputs = {name: open_array(path) for name, path in named_files(option, arrays).items()}
    for name in rows.keys() & inputs.keys():
        raise errors.usage(option, f"{name!r} has an array and other files", "give only one")
    return {**inputs, **{name: np.array(each, object) for name, each in rows.items()}}


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise errors.usage(path, "cannot be read", error.strerror or str(error)) from None


def open_array(path: str) -> np.ndarray:
    """Maps the array in a file into memory, read-only. UsageError if there is no usable array.

    The file must not be truncated while the array is in use.
    """
    import numpy as np

    try:
        with open(path, "rb") as file:
            shape, fortran, dtype = _read_header(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise errors.usage(path, "cannot be read", error.strerror or str(error)) from None
    except ValueError as error:
        raise errors.usage(path, f"not a .npy file: {error}", _ADVICE) from None
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        expected = "expected bool, integers or floats of at most 64 bits"
        raise errors.usage(path, f"has dtype {dtype}", expected)
    wanted = math.prod(shape) * dtype.itemsize
    if size - offset != wanted:
        expected = f"{dtype} {list(shape)} takes {wanted} bytes"
        raise errors.usage(path, f"has {size - offset} bytes of elements", expected)
    if wanted == 0:
        return np.empty(shape, dtype)
    order = "F" if fortran else "C"
    # The plain view: np.memmap makes indexing slower.
    return np.asarray(np.memmap(path, dtype, "r", offset, shape, order))


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise ValueError(f"format {version[0]}.{version[1]}, 1.0 and 2.0 are supported")


def write_array(path: str, array: np.ndarray) -> None:
    """Writes `array` in place of what is at `path`. Failure if it cannot be written."""
    import numpy as np
    from numpy.lib import format as npy

    flat = np.ascontiguousarray(array)
    try:
        with open(path, "wb") as file:
            header = npy.header_data_from_array_1_0(flat.reshape(array.shape))
            npy.write_array_header_1_0(file, header)
            if flat.size:
                file.write(memoryview(flat.reshape(-1)).cast("B"))
    except OSError as error:
        raise errors.Failure(f"{path}: cannot be written ({error.strerror or error})") from None


def check_rows_first(client: braid.Client, model: str) -> None:
    """Failure if dim 0 of the model's tensors is not the batch, unlike dim 0 of a Dataset."""
    from braid import _infer
    from braid.errors import NotFound

    try:
        dims = _infer.batch_dims(client._channel, model)
    except NotFound:
        return  # The trainer's model is no longer served.
    for name, dim in dims.items():
        raise errors.Failure(
            f"model {model}: the batch is dim {dim} of {name}, but dim 0 of the files (expected "
            f"dim 0: run a job, or send batches with the Python client)"
        )


class Dataset:
    """Files of as many rows each. rows: how many."""

    def __init__(self, inputs: Mapping[str, str], targets: Mapping[str, str]) -> None:
        """inputs, targets: paths by name. UsageError if the rows of the files differ."""
        self.rows = 0
        self._inputs = {name: self._open(path) for name, path in inputs.items()}
        self._targets = {name: self._open(path) for name, path in targets.items()}

    def gather(self, indices: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns copies of the rows `indices`, in this order, of the inputs and the targets."""
        inputs, targets = (
            {name: array.take(indices, axis=0) for name, array in columns.items()}
            for columns in (self._inputs, self._targets)
        )
        return inputs, targets

    def slice(self, start: int, stop: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Returns the rows from `start` up to `stop`, without a copy."""
        inputs, targets = (
            {name: array[start:stop] for name, array in columns.items()}
            for columns in (self._inputs, self._targets)
        )
        return inputs, targets

    def _open(self, path: str) -> np.ndarray:
        array = open_array(path)
        if array.ndim == 0 or len(array) == 0:
            raise errors.usage(path, f"has shape {list(array.shape)}", "expected at least 1 row")
        if self.rows and len(array) != self.rows:
            raise errors.usage(path, f"has {len(array)} rows", f"other files have {self.rows}")
        self.rows = len(array)
        return array


def epoch_order(rows: int, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """Returns the order in which an epoch visits the rows: a permutation of 0 to rows - 1.

    It depends on the arguments alone, in every version of numpy: NEP 19 freezes RandomState.
    """
    import numpy as np

    if not shuffle:
        return np.arange(rows)
    generator = np.random.MT19937(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    return np.random.RandomState(generator).permutation(rows)
