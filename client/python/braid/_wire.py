"""Serialization of messages with tensors that copies the tensors' bytes only once.

protobuf copies them into the message, the encoder's buffer and the result, which takes longer than
sending for a batch of 1 MB.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from braid import _protocol, _tensors
from braid._tensors import WireTensor

_Tensor = _protocol.message("braid.v1.Tensor")
_DATA = _Tensor.DESCRIPTOR.fields_by_name["data"].number

# Consecutive buffers of a serialized message or field.
Parts = list[Any]


def tensor_field(number: int, tensor: WireTensor) -> Parts:
    """Serializes field `number` of a message, a braid.v1.Tensor."""
    bare = _Tensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return bytes_field(number, [bare.SerializeToString(), *array_field(_DATA, tensor.array)])


def contents_field(number: int, tensor: WireTensor) -> Parts:
    """Serializes field `number` of a message, the elements of a tensor of any datatype."""
    if tensor.datatype != "BYTES":
        return array_field(number, tensor.array)
    parts = []
    for each in tensor.array.flat:
        parts += [len(each).to_bytes(_tensors.LENGTH_BYTES, "little"), each]
    return bytes_field(number, parts)


def array_field(number: int, array: np.ndarray) -> Parts:
    """Serializes field `number` of a message, the array's elements in row-major order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # memoryview.cast rejects empty arrays.
    return bytes_field(number, [memoryview(flat).cast("B")] if flat.size else [])


def bytes_field(number: int, parts: Parts) -> Parts:
    """Serializes field `number` of a message from parts: bytes, or a submessage."""
    return [_varint(number << 3 | 2), _varint(sum(len(part) for part in parts)), *parts]


def _varint(value: int) -> bytes:
    """Encodes a protobuf varint: 7 bits per byte, lowest first; the top bit marks continuation."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
