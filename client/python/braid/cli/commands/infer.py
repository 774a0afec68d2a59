"""`braid infer`: runs a model on a batch in .npy files, or on images and texts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from braid.cli import errors, files, options, settings
from braid.cli.options import POSITIVE, Flags, option, pass_flags
from braid.cli.output import print_json, print_line, printable

if TYPE_CHECKING:
    import braid
    import numpy as np
    from braid._infer import Reply
    from braid.results import Chunk

EPILOG = """\
Prints the values of outputs with at most 100 values; --json prints all values, flat.

\b
Examples:
  braid infer toy --input x=batch.npy --output output__0=result.npy --split
  braid infer resnet --input image=@cat.jpg --input image=@dog.jpg
"""
_MAX_SHOWN = 100


@dataclass(frozen=True)
class _Output:
    name: str
    datatype: str
    array: np.ndarray


@dataclass(frozen=True)
class _Result:
    model: str
    version: str
    outputs: list[_Output]
    split: list[Chunk]


@options.command("infer", help="Run a model on a batch in files.", epilog=EPILOG)
@click.argument("model")
@option(
    "--input", "inputs", multiple=True, required=True, metavar=f"{files.FILE}|NAME=@FILE",
    help="An input and its file; repeat for each input. The dtype must be that of the input. "
    "NAME=@FILE sends an image or text for the server to decode; repeat it for more rows",
)  # fmt: skip
@option(
    "--output", "outputs", multiple=True, metavar=files.FILE,
    help="Write this output to a file, BF16 as float32; may be repeated",
)  # fmt: skip
@option(
    "--model-version", metavar="N", default="",
    help="Number or label of a version [default: the pinned one, else the newest]",
)  # fmt: skip
@option(
    "--split", is_flag=True,
    help="Print how the batch was split: rows and shapes of each device",
)  # fmt: skip
@option(
    "--batch-size", type=POSITIVE, metavar="N",
    help="Maximum rows of one call to the server [default: one call, or for more than 2 GiB, calls "
    "of at most 256 MiB]",
)  # fmt: skip
@pass_flags
def command(
    flags: Flags,
    model: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    model_version: str,
    split: bool,
    batch_size: int | None,
) -> None:
    written = files.named_files("--output", outputs)
    arrays = files.open_inputs("--input", inputs)
    with settings.connect(flags) as client:
        result = _infer(client, model, model_version, arrays, split, batch_size)
    _write(result, written)
    if flags.json:
        print_json(_as_json(result, written))
    else:
        _print(result, arrays, written)


def _infer(
    client: braid.Client,
    model: str,
    version: str,
    arrays: Mapping[str, np.ndarray],
    split: bool,
    batch_size: int | None,
) -> _Result:
    from braid import _infer, _tensors

    replies = _infer.replies(
        client._channel,
        model,
        version,
        _tensors.to_wire(arrays, "inputs", encoded=True),
        batch_size=batch_size,
        report_split=split,
        attempts=1,  # A model may keep state, so a request is not sent again.
    )
    try:
        received = list(_with_progress(replies, model, arrays))
        results = [_result(reply.message) for reply in received]
    except ValueError as error:
        raise errors.Failure(str(error)) from None
    return results[0] if len(results) == 1 else _joined(results, received[0].batch_dims)


def _with_progress(
    replies: Iterator[Reply], model: str, arrays: Mapping[str, np.ndarray]
) -> Iterator[Reply]:
    """Yields the replies, and shows a bar on a terminal once there are several."""
    from braid._job_progress import ProgressBar
    from braid.jobs import JobProgress

    bar = None
    rows, start = 0, time.monotonic()
    try:
        for reply in replies:
            yield reply
            dims = reply.batch_dims
            total = max(_rows(array.shape, dims.get(name, 0)) for name, array in arrays.items())
            for output in reply.message.outputs[:1]:
                rows += _rows(output.shape, dims.get(output.name, 0))
            if rows < total and sys.stderr.isatty():
                bar = bar or ProgressBar(printable(model))
            if bar is not None:
                rate = rows / max(time.monotonic() - start, 1e-9)
                bar.show(JobProgress(rows=rows, total_rows=total, rows_per_second=rate))
    finally:
        if bar is not None:
            bar.close()


def _rows(shape: Sequence[int], batch_dim: int) -> int:
    return shape[batch_dim] if batch_dim < len(shape) else 0


def _joined(results: Sequence[_Result], batch_dims: Mapping[str, int]) -> _Result:
    """Joins the results of consecutive parts of a batch."""
    import numpy as np
    from braid._infer import Reply
    from braid.results import Chunk

    outputs = [
        _Output(
            output.name,
            output.datatype,
            np.concatenate(
                [result.outputs[index].array for result in results],
                batch_dims.get(output.name, 0),
            ),
        )
        for index, output in enumerate(results[0].outputs)
    ]
    rows: dict[str, int] = {}
    for result in results:
        for chunk in result.split:
            rows[chunk.device] = rows.get(chunk.device, 0) + chunk.rows
    split = [Chunk(device=device, rows=count) for device, count in rows.items()]
    return _Result(results[0].model, results[0].version, outputs, split)


def _result(reply: Any) -> _Result:
    import numpy as np
    from braid import _tensors
    from braid.errors import Internal

    if len(reply.outputs) != len(reply.raw_output_contents):
        raise Internal(
            f"reply: {len(reply.outputs)} outputs with {len(reply.raw_output_contents)} contents"
        )
    outputs = []
    for tensor, content in zip(reply.outputs, reply.raw_output_contents):
        try:
            dtype = _tensors.wire_dtype(tensor.datatype)
            elements = np.frombuffer(content, dtype).reshape(tuple(tensor.shape))
        except ValueError as error:
            raise Internal(f"reply: output {tensor.name!r}: {error}") from None
        array = _tensors.to_array(tensor.datatype, elements)
        outputs.append(_Output(tensor.name, tensor.datatype, array))
    split = reply.parameters["split"].string_param if "split" in reply.parameters else ""
    return _Result(reply.model_name, reply.model_version, outputs, _chunks(split))


def _chunks(split: str) -> list[Chunk]:
    """Parses the server's report, as in "cpu:0=10,cpu:1=10"."""
    from braid.errors import Internal
    from braid._infer import Reply
    from braid.results import Chunk

    chunks = []
    for part in filter(None, split.split(",")):
        device, _, rows = part.partition("=")
        if not rows.isdecimal():
            raise Internal(f"reply: split is {split!r} (expected DEVICE=ROWS,…)")
        chunks.append(Chunk(device=device, rows=int(rows)))
    return chunks


def _write(result: _Result, paths: Mapping[str, str]) -> None:
    by_name = {output.name: output.array for output in result.outputs}
    for name, path in paths.items():
        if name not in by_name:
            known = ", ".join(by_name)
            raise errors.Failure(f"--output: unknown output {name!r} (the model has: {known})")
        files.write_array(path, by_name[name])


def _print(result: _Result, inputs: Mapping[str, np.ndarray], written: Mapping[str, str]) -> None:
    from braid.cli.split import inference_text

    print_line(f"model {result.model}, version {result.version}")
    for output in result.outputs:
        print_line(f"{output.name}  {output.datatype}  {list(output.array.shape)}")
        if output.array.size <= _MAX_SHOWN and output.name not in written:
            sys.stdout.write(f"{values_text(output.array)}\n")
    before = {name: array.shape for name, array in inputs.items()}
    after = {output.name: output.array.shape for output in result.outputs}
    sys.stdout.write(inference_text(before, after, result.split))


def values_text(array: np.ndarray) -> str:
    """Returns the values in nested brackets, one line for each innermost row."""
    if array.size == 0:
        return "[]"

    def nested(values: Any, depth: int) -> str:
        if depth == array.ndim:
            return _value_text(values)
        inner = [nested(each, depth + 1) for each in values]
        separator = ", " if depth + 1 == array.ndim else ",\n" + " " * (depth + 1)
        return f"[{separator.join(inner)}]"

    return nested(array.tolist(), 0)


def _value_text(value: bool | int | float) -> str:
    """Returns floats with six significant digits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_json(result: _Result, written: Mapping[str, str]) -> dict[str, Any]:
    outputs = []
    for output in result.outputs:
        shape = list(output.array.shape)
        entry = {"name": output.name, "datatype": output.datatype, "shape": shape}
        if output.name not in written:
            entry["data"] = output.array.reshape(-1).tolist()
        outputs.append(entry)
    split = [{"device": chunk.device, "rows": chunk.rows} for chunk in result.split]
    return {
        "model": result.model,
        "version": result.version,
        "outputs": outputs,
        **({"split": split} if split else {}),
    }
