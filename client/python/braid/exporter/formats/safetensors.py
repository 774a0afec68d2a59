"""Reader and writer of safetensors files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch

from braid.exporter import export_errors

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bfloat16: "BF16",
}


def can_hold(dtype: torch.dtype) -> bool:
    return dtype in _DTYPES


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the tensors, those with the largest elements first, so that all are aligned."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, tensor in ordered:
            flat = tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().tobytes())


def read(path: Path) -> dict[str, torch.Tensor]:
    """Raises ExportError if the file is damaged or not a safetensors file."""
    dtypes = {name: dtype for dtype, name in _DTYPES.items()}
    tensors = {}
    with export_errors.wrap_errors(f"{path}: cannot be read"):
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            header.pop("__metadata__", None)
            for name, record in header.items():
                begin, end = record["data_offsets"]
                file.seek(8 + size + begin)
                dtype, shape = dtypes[record["dtype"]], record["shape"]
                tensors[name] = from_bytes(dtype, shape, file.read(end - begin))
    return tensors


def from_bytes(dtype: torch.dtype, shape: list[int], data: bytes) -> torch.Tensor:
    """Returns a tensor from little-endian, row-major data.

    Raises ValueError if the byte count does not match the shape.
    """
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"{len(data)} bytes (expected {expected} for shape {shape})")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
