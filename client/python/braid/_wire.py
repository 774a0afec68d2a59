"""Serialized messages that hold tensors, made with one copy of the tensors' bytes.

protobuf's own way copies them into the message, then into its encoder's buffer, then into the
result, which for a batch of a megabyte takes longer than sending it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from braid import _protocol
from braid._tensors import WireTensor

_Tensor = _protocol.message("braid.v1.Tensor")
_DATA = _Tensor.DESCRIPTOR.fields_by_name["data"].number

# Buffers that make up a serialized message, or a part of one, in a row.
Parts = list[Any]


def tensor_field(number: int, tensor: WireTensor) -> Parts:
    """The field `number` of a message, a braid.v1.Tensor."""
    bare = _Tensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return bytes_field(number, [bare.SerializeToString(), *array_field(_DATA, tensor.array)])


def array_field(number: int, array: np.ndarray) -> Parts:
    """The field `number` of a message, the array's elements, whatever its strides."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # An empty array has no memory to look at.
    return bytes_field(number, [memoryview(flat).cast("B")] if flat.size else [])


def bytes_field(number: int, parts: Parts) -> Parts:
    """The field `number` of a message: bytes, or a message, that `parts` make up."""
    return [_varint(number << 3 | 2), _varint(sum(len(part) for part in parts)), *parts]


def _varint(value: int) -> bytes:
    """protobuf's: seven bits a byte, the lowest first, the top bit set on all but the last."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
