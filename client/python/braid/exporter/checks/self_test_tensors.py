"""Tensors of a self-test, stored or generated from a seed; see docs/reference/exported-pair.md."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from braid.exporter.checks import differences
from braid.exporter.formats.safetensors import from_bytes
from braid.exporter.model.signature import DATATYPES

DTYPES = {name: dtype for dtype, name in DATATYPES.items()}
# In elements.
MAX_STORED = 4096
MAX_STORED_IF_SPECIAL = 16384
_MAX_SAMPLES = 256
_CHUNK = 1 << 16  # fits into a processor's cache


def describe(
    tensor: torch.Tensor, seed: int, shrink: float = 1.0, max_stored: int = MAX_STORED
) -> dict[str, Any]:
    """Returns the JSON of a tensor: its data, or how to generate one with the same statistics.

    shrink: factor for the spread of a generated tensor. max_stored: largest stored tensor,
    in elements; the limit is higher for non-finite values.
    """
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    fields = {"dtype": DATATYPES[tensor.dtype], "shape": list(tensor.shape)}
    if tensor.numel() <= MAX_STORED_IF_SPECIAL and not tensor.isfinite().all():
        max_stored = MAX_STORED_IF_SPECIAL
    if tensor.numel() <= max_stored:
        return fields | {"data": _encode(tensor.reshape(-1).view(torch.uint8).numpy())}
    return fields | {"generated": {"seed": seed} | _statistics(tensor, shrink)}


def _statistics(tensor: torch.Tensor, shrink: float) -> dict[str, float]:
    if not tensor.is_floating_point():
        integers = tensor.numpy()  # PyTorch has no min() for unsigned integers.
        return {"mean": 0.0, "scale": 0.0, "min": int(integers.min()), "max": int(integers.max())}
    count, total, least, most = 0, 0.0, math.inf, -math.inf
    for values in _finite_chunks(tensor):
        count += values.numel()
        total += values.sum().item()
        least, most = min(least, values.min().item()), max(most, values.max().item())
    if count == 0:
        return {"mean": 0.0, "scale": 0.0, "min": 0.0, "max": 0.0}
    mean = total / count
    squares = sum((values - mean).square().sum().item() for values in _finite_chunks(tensor))
    scale = shrink * math.sqrt(3 * squares / count)
    return {"mean": mean, "scale": scale, "min": least, "max": most}


def _finite_chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the finite elements as float64, in parts that are not empty."""
    for chunk in differences.chunks(tensor):
        values = chunk.double()
        if not math.isfinite(values.sum().item()):
            values = values[values.isfinite()]
        if values.numel() > 0:
            yield values


def read_tensor(record: Mapping[str, Any]) -> torch.Tensor:
    """Returns the tensor that the JSON describes. Raises ValueError if it is not valid."""
    if record["dtype"] not in DTYPES:
        raise ValueError(f"unknown dtype '{record['dtype']}'")
    dtype, shape = DTYPES[record["dtype"]], record["shape"]
    if "generated" in record:
        return generate(dtype, shape, **record["generated"])
    return from_bytes(dtype, shape, base64.b64decode(record["data"], validate=True))


def generate(
    dtype: torch.dtype,
    shape: list[int],
    seed: int,
    mean: float = 0.0,
    scale: float = 0.0,
    min: float = 0,
    max: float = 0,
) -> torch.Tensor:
    """Returns a tensor that is the same on every machine: element i depends on seed and i alone."""
    flat = torch.empty(math.prod(shape), dtype=dtype)
    for begin, end in _chunks(flat.numel()):
        numbers = uniform(seed, begin, end)
        if dtype == torch.bool:
            values = numbers < 0.5
        elif dtype.is_floating_point:
            values = np.clip(mean + scale * (2 * numbers - 1), min, max)
        else:
            # The offset may exceed INT64; the sum wraps around to the correct number.
            offset = np.floor(numbers * float(max - min + 1)).astype(np.uint64)
            offset = np.minimum(offset, np.uint64(max - min))
            values = (offset + np.uint64(min % (1 << 64))).view(np.int64)
        flat[begin:end] = torch.from_numpy(values)
    return flat.reshape(shape)


def uniform(seed: int, begin: int, end: int) -> np.ndarray:
    """Returns elements `begin` to `end` of the seed's splitmix64 sequence, in [0, 1)."""
    first = ((seed << 32) + begin + 0x9E3779B97F4A7C15) % (1 << 64)
    z = np.arange(end - begin, dtype=np.uint64) + np.uint64(first)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, _CHUNK):
        yield begin, min(begin + _CHUNK, count)


def sample(tensor: torch.Tensor, tolerance: float) -> dict[str, Any]:
    """Returns the JSON of at most 256 evenly spaced expected elements."""
    stride = max(1, -(-tensor.numel() // _MAX_SAMPLES))
    return {
        "dtype": DATATYPES[tensor.dtype],
        "shape": list(tensor.shape),
        "stride": stride,
        "data": _encode(_elements(tensor, stride)),
        "tolerance": tolerance,
    }


def largest_difference(record: Mapping[str, Any], tensor: torch.Tensor) -> float:
    """Returns the largest difference of `tensor` from its expected elements.

    Infinite for another shape or dtype. NaN equals NaN; infinities must match. Raises ValueError if
    `record` is not valid.
    """
    if record["dtype"] != DATATYPES.get(tensor.dtype) or record["shape"] != list(tensor.shape):
        return math.inf
    expected = np.frombuffer(base64.b64decode(record["data"], validate=True), np.float64)
    got = _elements(tensor, record["stride"])
    if len(expected) != len(got):
        raise ValueError(f"data: {len(expected)} elements (expected {len(got)})")
    with np.errstate(invalid="ignore"):
        same = (expected == got) | (np.isnan(expected) & np.isnan(got))
        differences = np.where(same, 0.0, np.abs(expected - got))
    return float(np.nan_to_num(differences, nan=math.inf, posinf=math.inf).max(initial=0.0))


def _elements(tensor: torch.Tensor, stride: int) -> np.ndarray:
    elements = tensor.detach().reshape(-1)[::stride].cpu().clone()
    return elements.to(torch.float64).numpy()


def _encode(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
