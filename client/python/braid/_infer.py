"""Inference in one call or, for a large batch, in several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from braid import _tensors, _wire
from braid._channel import Channel
from braid._protocol import INFERENCE
from braid._tensors import WireTensor

# Size of a call when a batch that exceeds the size limit of a message is cut.
PART_BYTES = 256 << 20
_CONTENTS = INFERENCE["ModelInfer"].request.DESCRIPTOR.fields_by_name["raw_input_contents"].number


def replies(
    channel: Channel,
    model: str,
    version: str,
    tensors: Sequence[WireTensor],
    *,
    outputs: Iterable[str] = (),
    batch_size: int | None = None,
    report_split: bool = False,
    timeout: float | None = None,
    attempts: float | None = None,
) -> Iterator[Any]:
    """Runs a model and yields a ModelInferResponse for each call. All calls use the same version.

    batch_size: maximum rows of a call; None: one call if it fits into a message, or else as many
        rows as fit into 256 MiB.
    timeout, attempts: of each call.
    Raises ValueError if the batch has to be cut, but cannot be.
    """
    outputs = list(outputs)
    rows = _rows_per_call(tensors, batch_size)
    if rows is not None:
        _check_divisible(channel, model, version, timeout)
    for part in [tensors] if rows is None else _parts(tensors, rows):
        payload = _serialize(model, version, part, outputs, report_split)
        reply = channel.call(INFERENCE["ModelInfer"], payload, timeout, attempts=attempts)
        version = reply.model_version
        yield reply


def _rows_per_call(tensors: Sequence[WireTensor], batch_size: int | None) -> int | None:
    """Returns the maximum rows of a call; None: the batch is not cut."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} (expected at least 1)")
    size = sum(tensor.nbytes for tensor in tensors)
    if batch_size is None and size <= _tensors.MAX_BYTES:
        return None
    rows = {tensor.shape[:1] for tensor in tensors}
    if len(rows) != 1 or rows == {()}:
        raise ValueError(
            "inputs: cannot be cut into several calls (expected the same dim 0 for all inputs)"
        )
    ((total,),) = rows
    row_bytes = math.ceil(size / max(total, 1)) or 1
    if row_bytes > _tensors.MAX_BYTES:
        raise ValueError(
            f"inputs: a row has {row_bytes} bytes (expected at most {_tensors.MAX_BYTES})"
        )
    wanted = batch_size or max(PART_BYTES // row_bytes, 1)
    wanted = min(wanted, _tensors.MAX_BYTES // row_bytes)
    return wanted if wanted < total else None


def _check_divisible(channel: Channel, model: str, version: str, timeout: float | None) -> None:
    method = INFERENCE["ModelConfig"]
    request = method.request(name=model, version=version)
    if channel.call(method, request, timeout).config.max_batch_size == 0:
        raise ValueError(
            f"batch_size: model {model!r} takes each batch whole, because it has max_batch_size 0 "
            "(expected one call, without batch_size)"
        )


def _parts(tensors: Sequence[WireTensor], rows: int) -> Iterator[list[WireTensor]]:
    for start in range(0, tensors[0].shape[0], rows):
        yield [
            WireTensor(tensor.name, tensor.datatype, tensor.array[start : start + rows])
            for tensor in tensors
        ]


def _serialize(
    model: str,
    version: str,
    tensors: Sequence[WireTensor],
    outputs: Sequence[str],
    report_split: bool,
) -> bytes:
    """Serializes a ModelInferRequest. Copies the arrays' bytes once."""
    request = INFERENCE["ModelInfer"].request(model_name=model, model_version=version)
    if report_split:
        request.parameters["report_split"].bool_param = True
    contents = []
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        contents += _wire.contents_field(_CONTENTS, tensor)
    for name in outputs:
        request.outputs.add(name=name)
    return b"".join([request.SerializeToString(), *contents])
