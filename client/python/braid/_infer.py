"""Inference in one call or, for a large batch, in several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from braid import _tensors, _wire
from braid._channel import Channel
from braid._protocol import INFERENCE
from braid._tensors import WireTensor

# Size of a call when a batch that exceeds the size limit of a message is cut.
PART_BYTES = 256 << 20
# Parameter of a model's configuration: dim of the batch of an input or output, if it is not dim 0.
_BATCH_DIM = "batch_dim."
_CONTENTS = INFERENCE["ModelInfer"].request.DESCRIPTOR.fields_by_name["raw_input_contents"].number


@dataclass(frozen=True)
class Reply:
    """Reply to one call.

    message: a ModelInferResponse.
    batch_dims: dims along which the replies of several calls are joined, by output; others are
        joined along dim 0.
    """

    message: Any
    batch_dims: Mapping[str, int]


def replies(
    channel: Channel,
    model: str,
    version: str,
    tensors: Sequence[WireTensor],
    *,
    outputs: Iterable[str] = (),
    batch_size: int | None = None,
    report_split: bool = False,
    report_step: bool = False,
    timeout: float | None = None,
    attempts: float | None = None,
) -> Iterator[Reply]:
    """Runs a model and yields a reply for each call. All calls use the same version.

    batch_size: maximum rows of a call; None: one call if it fits into a message, or else as many
        rows as fit into 256 MiB.
    timeout, attempts: of each call.
    Raises ValueError if the batch has to be split, but cannot be.
    """
    outputs = list(outputs)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: {batch_size} (expected at least 1)")
    parts: Iterable[Sequence[WireTensor]] = [tensors]
    dims: Mapping[str, int] = {}
    if batch_size is not None or sum(each.nbytes for each in tensors) > _tensors.MAX_BYTES:
        config = _config(channel, model, version, timeout)
        dims = _batch_dims(config)
        rows = _rows_per_call(tensors, batch_size, dims)
        if rows is not None:
            _check_divisible(model, config)
            parts = _parts(tensors, rows, dims)
    for part in parts:
        payload = _serialize(model, version, part, outputs, report_split, report_step)
        reply = channel.call(INFERENCE["ModelInfer"], payload, timeout, attempts=attempts)
        version = reply.model_version
        yield Reply(reply, dims)


def batch_dims(channel: Channel, model: str) -> dict[str, int]:
    """Returns the dims of the batch of a model's inputs and outputs where they are not dim 0."""
    return _batch_dims(_config(channel, model, "", None))


def _config(channel: Channel, model: str, version: str, timeout: float | None) -> Any:
    method = INFERENCE["ModelConfig"]
    return channel.call(method, method.request(name=model, version=version), timeout).config


def _batch_dims(config: Any) -> dict[str, int]:
    return {
        key.removeprefix(_BATCH_DIM): int(parameter.string_value)
        for key, parameter in config.parameters.items()
        if key.startswith(_BATCH_DIM)
    }


def _rows_per_call(
    tensors: Sequence[WireTensor], batch_size: int | None, batch_dims: Mapping[str, int]
) -> int | None:
    """Returns the maximum rows of a call; None: the batch is not split."""
    size = sum(tensor.nbytes for tensor in tensors)
    dims = {tensor.name: batch_dims.get(tensor.name, 0) for tensor in tensors}
    rows = {tensor.shape[dims[tensor.name] :][:1] for tensor in tensors}
    if len(rows) != 1 or rows == {()}:
        named = ", ".join(f"dim {dim} of {name!r}" for name, dim in dims.items())
        expected = f"the same size of {named}" if batch_dims else "the same dim 0 for all inputs"
        raise ValueError(f"inputs: cannot be split into several calls (expected {expected})")
    ((total,),) = rows
    row_bytes = math.ceil(size / max(total, 1)) or 1
    if row_bytes > _tensors.MAX_BYTES:
        raise ValueError(
            f"inputs: a row has {row_bytes} bytes (expected at most {_tensors.MAX_BYTES})"
        )
    wanted = batch_size or max(PART_BYTES // row_bytes, 1)
    wanted = min(wanted, _tensors.MAX_BYTES // row_bytes)
    return wanted if wanted < total else None


def _check_divisible(model: str, config: Any) -> None:
    if config.max_batch_size == 0:
        raise ValueError(
            f"batch_size: model {model!r} does not support splitting (max_batch_size is 0; send "
            "the batch in one call, without batch_size)"
        )


def _parts(
    tensors: Sequence[WireTensor], rows: int, batch_dims: Mapping[str, int]
) -> Iterator[list[WireTensor]]:
    total = tensors[0].shape[batch_dims.get(tensors[0].name, 0)]
    for start in range(0, total, rows):
        part = []
        for tensor in tensors:
            index = (slice(None),) * batch_dims.get(tensor.name, 0) + (slice(start, start + rows),)
            array = np.ascontiguousarray(tensor.array[index])
            part.append(WireTensor(tensor.name, tensor.datatype, array))
        yield part


def _serialize(
    model: str,
    version: str,
    tensors: Sequence[WireTensor],
    outputs: Sequence[str],
    report_split: bool,
    report_step: bool,
) -> bytes:
    """Serializes a ModelInferRequest. Copies the arrays' bytes once."""
    request = INFERENCE["ModelInfer"].request(model_name=model, model_version=version)
    if report_split:
        request.parameters["report_split"].bool_param = True
    if report_step:
        request.parameters["report_step"].bool_param = True
    contents = []
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        contents += _wire.contents_field(_CONTENTS, tensor)
    for name in outputs:
        request.outputs.add(name=name)
    return b"".join([request.SerializeToString(), *contents])
