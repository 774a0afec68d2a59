"""Conversion of tensors to and from the wire: dense, row-major, little-endian bytes.

| datatype              | from                                | to            |
|-----------------------|-------------------------------------|---------------|
| BOOL                  | numpy bool, torch.bool              | numpy bool    |
| [U]INT8 ... [U]INT64  | integers of that size               | same dtype    |
| FP16, FP32, FP64      | floats of that size                 | same dtype    |
| BF16                  | torch.bfloat16, ml_dtypes.bfloat16  | numpy float32 |
| BYTES                 | bytes and str                       | -             |

NumPy has no bfloat16, so such tensors are returned as float32, which represents the same values.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from braid.errors import Internal, Unimplemented

if TYPE_CHECKING:
    import torch

TensorLike = Union[npt.ArrayLike, "torch.Tensor"]

# protobuf's limit of 2 GiB per message, less a margin for other fields.
MAX_BYTES = (1 << 31) - (1 << 16)

_DTYPES = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
# By kind and size, because one size may have several types (long, long long) and byte orders.
_DATATYPES = {(dtype.kind, dtype.itemsize): name for name, dtype in _DTYPES.items()}
_BFLOAT16_BITS = np.dtype("<u2")
# Before each element of BYTES: its length.
LENGTH_BYTES = 4


@dataclass(frozen=True)
class WireTensor:
    """Tensor to send. array: elements as on the wire (BF16: bits as uint16; BYTES: bytes)."""

    name: str
    datatype: str
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def nbytes(self) -> int:
        """Size on the wire."""
        if self.datatype == "BYTES":
            return sum(LENGTH_BYTES + len(each) for each in self.array.flat)
        return self.array.nbytes

    def data(self) -> bytes:
        """Returns the elements' bytes in row-major order. Not for BYTES."""
        return self.array.tobytes()


def to_wire(
    tensors: Mapping[str, TensorLike], field: str, *, encoded: bool = False
) -> list[WireTensor]:
    """Prepares tensors for sending. field: argument name for messages.

    encoded: accept rows of bytes and str, which the server decodes.
    Raises TypeError if `tensors` is not a mapping, or for an unsupported dtype.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"{field}: a {type(tensors).__name__} (expected a dict of name to array, such as "
            f"{{'x': array}})"
        )
    return [
        _encoded_to_wire(name, value, field)
        if encoded and _is_encoded(value)
        else _to_wire(name, value, field)
        for name, value in tensors.items()
    ]


def check_fits(tensors: Iterable[WireTensor]) -> None:
    """Raises ValueError if `tensors` exceed the size limit of a message."""
    size = sum(tensor.nbytes for tensor in tensors)
    if size > MAX_BYTES:
        raise ValueError(
            f"arrays: {size} bytes (expected at most {MAX_BYTES} per message): send fewer rows"
        )


def from_wire(datatype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """Returns a writable array. Raises Internal if the size of `data` does not match."""
    dtype = wire_dtype(datatype)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise Internal(
            f"tensor: {len(data)} bytes from the server for {datatype} of shape {list(shape)} "
            f"(expected {expected})"
        )
    return to_array(datatype, np.frombuffer(data, dtype).reshape(shape).copy())


def wire_dtype(datatype: str) -> np.dtype:
    """Returns the dtype of elements on the wire (BF16: uint16). Raises Unimplemented if unknown."""
    if datatype == "BF16":
        return _BFLOAT16_BITS
    if datatype not in _DTYPES:
        raise Unimplemented(f"datatype: {datatype!r} cannot be converted to an array")
    return _DTYPES[datatype]


def to_array(datatype: str, elements: np.ndarray) -> np.ndarray:
    """Converts BF16 elements to float32. Returns all others unchanged."""
    if datatype != "BF16":
        return elements
    # bfloat16 is the upper half of a float32.
    widened = elements.astype(np.uint32)
    widened <<= 16
    return widened.view(np.float32)


def _is_encoded(value: Any) -> bool:
    """Returns True for bytes, str and paths, which are errors, in an array or a sequence."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "OSU"
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (bytes, str, os.PathLike))


def _encoded_to_wire(name: str, value: Any, field: str) -> WireTensor:
    where = f"{field}[{name!r}]"
    if isinstance(value, os.PathLike):
        raise TypeError(f"{where}: a path (expected a list with the content of each file)")
    if isinstance(value, (bytes, str)):
        raise TypeError(f"{where}: one {type(value).__name__} (expected a list with one per row)")
    if isinstance(value, np.ndarray) and value.dtype.kind == "S":
        raise TypeError(
            f"{where}: unsupported dtype {value.dtype}, which drops zeros at the end of a value "
            f"(expected a list of bytes, or an array with dtype=object)"
        )
    array = np.array(value, object)
    rows = np.empty(array.shape, object)
    for index, each in np.ndenumerate(array):
        if isinstance(each, os.PathLike):
            raise TypeError(
                f"{where}: the path {str(each)!r} (expected the content of the file, as "
                f"Path.read_bytes() returns it)"
            )
        if not isinstance(each, (bytes, str)):
            raise TypeError(f"{where}: a {type(each).__name__} (expected bytes or str)")
        rows[index] = each.encode() if isinstance(each, str) else bytes(each)
    return WireTensor(name, "BYTES", rows)


def _to_wire(name: str, value: TensorLike, field: str) -> WireTensor:
    torch = sys.modules.get("torch")  # Not imported here: without it, there are no torch tensors.
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_to_wire(name, value, field, torch)
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return WireTensor(name, "BF16", array.view(np.uint16).astype(_BFLOAT16_BITS, copy=False))
    datatype = _DATATYPES.get((array.dtype.kind, array.dtype.itemsize))
    if datatype is None:
        raise TypeError(
            f"{field}[{name!r}]: unsupported dtype {array.dtype} (expected bool, integers of 8 to "
            f"64 bits, floats of 16 to 64 bits, or bfloat16)"
        )
    return WireTensor(name, datatype, array.astype(_DTYPES[datatype], copy=False))


def _torch_to_wire(name: str, value: Any, field: str, torch: Any) -> WireTensor:
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        bits = tensor.resolve_neg().contiguous().view(torch.int16).numpy().view(np.uint16)
        return WireTensor(name, "BF16", bits.astype(_BFLOAT16_BITS, copy=False))
    try:
        array = tensor.numpy(force=True)
    except TypeError as error:  # NumPy has no sparse, quantized or float8 arrays.
        raise TypeError(f"{field}[{name!r}]: cannot be sent: {error}") from error
    return _to_wire(name, array, field)
