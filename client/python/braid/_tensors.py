"""Tensors between Python and the wire: dense, row-major, little-endian bytes with a datatype.

| datatype              | from                                | to            |
|-----------------------|-------------------------------------|---------------|
| BOOL                  | numpy bool, torch.bool              | numpy bool    |
| [U]INT8 ... [U]INT64  | the integers of that size           | the same      |
| FP16, FP32, FP64      | the floats of that size             | the same      |
| BF16                  | torch.bfloat16, ml_dtypes.bfloat16  | numpy float32 |

numpy has no bfloat16. float32 holds each of its values exactly, so that is what one gets.
"""

from __future__ import annotations

import math
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

# protobuf can hold no more in one message; the rest is for the message's other fields.
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
# By kind and size: one size may have several types (long, long long) and either byte order.
_DATATYPES = {(dtype.kind, dtype.itemsize): name for name, dtype in _DTYPES.items()}
_BFLOAT16_BITS = np.dtype("<u2")


@dataclass(frozen=True)
class WireTensor:
    """A tensor to be sent. `array` holds the wire's elements (BF16: its bits, as uint16)."""

    name: str
    datatype: str
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def data(self) -> bytes:
        """The elements' bytes, whatever the array's strides."""
        return self.array.tobytes()


def to_wire(tensors: Mapping[str, TensorLike], field: str) -> list[WireTensor]:
    """Prepares `tensors`, which the caller knows as `field`, for sending.

    TypeError if it is no mapping or if an array's type has no datatype on the wire.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"{field} must be a dict of name to array, as in {{'x': array}}; "
            f"got {type(tensors).__name__}"
        )
    return [_to_wire(name, value, field) for name, value in tensors.items()]


def check_fits(tensors: Iterable[WireTensor]) -> None:
    """ValueError if `tensors` take more bytes than a message can hold."""
    size = sum(tensor.array.nbytes for tensor in tensors)
    if size > MAX_BYTES:
        raise ValueError(
            f"the arrays take {size} bytes and one message at most {MAX_BYTES}: send fewer rows"
        )


def from_wire(datatype: str, shape: Sequence[int], data: bytes) -> np.ndarray:
    """The array, writable, that `data` holds. Internal if the three do not fit together."""
    dtype = wire_dtype(datatype)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise Internal(
            f"the server sent {len(data)} bytes for {datatype} of shape {list(shape)}, "
            f"which takes {expected}"
        )
    return to_array(datatype, np.frombuffer(data, dtype).reshape(shape).copy())


def wire_dtype(datatype: str) -> np.dtype:
    """The dtype of the elements' bytes (BF16: of its bits). Unimplemented if there is none."""
    if datatype == "BF16":
        return _BFLOAT16_BITS
    if datatype not in _DTYPES:
        raise Unimplemented(f"datatype {datatype!r} cannot be turned into an array")
    return _DTYPES[datatype]


def to_array(datatype: str, elements: np.ndarray) -> np.ndarray:
    """What the caller gets for `elements` of `wire_dtype(datatype)`: itself but for BF16."""
    if datatype != "BF16":
        return elements
    # bfloat16 is the upper half of a float32.
    widened = elements.astype(np.uint32)
    widened <<= 16
    return widened.view(np.float32)


def _to_wire(name: str, value: TensorLike, field: str) -> WireTensor:
    torch = sys.modules.get("torch")  # Never imported here: without it no tensor can be torch's.
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_to_wire(name, value, field, torch)
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return WireTensor(name, "BF16", array.view(np.uint16).astype(_BFLOAT16_BITS, copy=False))
    datatype = _DATATYPES.get((array.dtype.kind, array.dtype.itemsize))
    if datatype is None:
        raise TypeError(
            f"{field}[{name!r}] has dtype {array.dtype}, which cannot be sent; "
            f"can be: bool, integers of 8 to 64 bits, floats of 16 to 64 bits, bfloat16"
        )
    return WireTensor(name, datatype, array.astype(_DTYPES[datatype], copy=False))


def _torch_to_wire(name: str, value: Any, field: str, torch: Any) -> WireTensor:
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        bits = tensor.resolve_neg().contiguous().view(torch.int16).numpy().view(np.uint16)
        return WireTensor(name, "BF16", bits.astype(_BFLOAT16_BITS, copy=False))
    try:
        array = tensor.numpy(force=True)
    except TypeError as error:  # Sparse, quantized, float8: what numpy has no array for.
        raise TypeError(f"{field}[{name!r}] cannot be sent: {error}") from error
    return _to_wire(name, array, field)
