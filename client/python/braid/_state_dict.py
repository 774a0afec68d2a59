"""Assembly of a state dict from streamed pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from braid import _tensors
from braid.errors import DataLoss


class _Tensor:
    """Tensor that is filled from consecutive pieces."""

    def __init__(self, piece: Any) -> None:
        self.name = piece.name
        self.datatype = piece.datatype
        dtype = _tensors.wire_dtype(piece.datatype)
        self._elements = np.empty(tuple(piece.shape), dtype)
        self._bytes = self._elements.reshape(-1).view(np.uint8)
        self._filled = 0

    @property
    def complete(self) -> bool:
        return self._filled == self._bytes.size

    def add(self, piece: Any) -> None:
        end = self._filled + len(piece.data)
        if piece.offset != self._filled or end > self._bytes.size:
            raise DataLoss(
                f"{self.name}: bytes {piece.offset} to {piece.offset + len(piece.data)} "
                f"(expected those from {self._filled} of {self._bytes.size})"
            )
        self._bytes[self._filled : end] = np.frombuffer(piece.data, np.uint8)
        self._filled = end

    def array(self) -> np.ndarray:
        return _tensors.to_array(self.datatype, self._elements)


def assemble(pieces: Iterable[Any]) -> dict[str, np.ndarray]:
    """Assembles arrays by name from braid.v1.GetStateDictResponse pieces, in stream order.

    Raises DataLoss for incomplete or duplicate tensors, and for pieces out of order.
    """
    arrays: dict[str, np.ndarray] = {}
    tensor: _Tensor | None = None
    for piece in pieces:
        if tensor is None or piece.name != tensor.name:
            _finish(tensor, arrays)
            if piece.name in arrays:
                raise DataLoss(f"{piece.name}: received twice")
            tensor = _Tensor(piece)
        tensor.add(piece)
    _finish(tensor, arrays)
    return arrays


def _finish(tensor: _Tensor | None, arrays: dict[str, np.ndarray]) -> None:
    if tensor is None:
        return
    if not tensor.complete:
        raise DataLoss(f"{tensor.name}: incomplete: the stream ended early")
    arrays[tensor.name] = tensor.array()
