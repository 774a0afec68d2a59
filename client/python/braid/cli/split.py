"""Tables of how a batch was split over the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braid.cli.output import printable, table_text
from braid.results import Chunk

Shape = Sequence[int]
_HEADINGS = ["device", "rows", "in", "out"]


def inference_text(
    inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], chunks: Sequence[Chunk]
) -> str:
    """Returns a row for each chunk, with the shapes that its device saw, and one for the batch.

        device   rows  in         out
        cpu:0      10  x [10, 5]  output__0 [10, 2]
        …
        total      30  x [30, 5]  output__0 [30, 2]

    Every chunk gets a tensor whose dim 0 is not the batch as a whole. "" without chunks.
    """
    if not chunks:
        return ""
    total = sum(chunk.rows for chunk in chunks)
    parts = [(chunk.device, chunk.rows) for chunk in chunks] + [("total", total)]
    rows = [
        [device, str(part), _named(inputs, total, part), _named(outputs, total, part)]
        for device, part in parts
    ]
    return table_text([_HEADINGS, *rows])


def training_text(chunks: Sequence[Chunk]) -> str:
    """Returns such a table for each stage, under its path, from chunks with shapes."""
    stages: dict[str, list[Chunk]] = {}
    for chunk in chunks:
        stages.setdefault(chunk.stage, []).append(chunk)
    return "".join(
        (printable(f"stage {path}") + "\n" if path else "") + _stage(stage)
        for path, stage in stages.items()
    )


def _stage(chunks: Sequence[Chunk]) -> str:
    total = sum(chunk.rows for chunk in chunks)
    rows = [
        [chunk.device, str(chunk.rows), _joined(chunk.input_shapes), _joined(chunk.output_shapes)]
        for chunk in chunks
    ]
    first = chunks[0]
    # Each chunk gives one number: the whole batch has as many as chunks.
    outputs = [shape or (len(chunks),) for shape in first.output_shapes]
    whole = [
        _joined([_scaled(shape, first.rows, total) for shape in shapes])
        for shapes in (first.input_shapes, outputs)
    ]
    return table_text([_HEADINGS, *rows, ["total", str(total), *whole]])


def _named(shapes: Mapping[str, Shape], total: int, part: int) -> str:
    return ", ".join(f"{name} {_scaled(shape, total, part)}" for name, shape in shapes.items())


def _scaled(shape: Shape, rows: int, wanted: int) -> list[int]:
    """Returns the shape with `wanted` in place of a dim 0 of `rows`."""
    return [wanted, *shape[1:]] if shape and shape[0] == rows else list(shape)


def _joined(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
