"""Chooses the format, and takes a module from its arguments to a version's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from braid._export import ExportResult
from braid.exporter import config, package
from braid.exporter.check import check_pair
from braid.exporter.pair import Pair, make_pair
from braid.exporter.quiet import quiet
from braid.exporter.signature import named_inputs


def export_checked(
    module: Any,
    example_inputs: Any,
    path: Path,
    format: str,
    stages: Sequence[Sequence[str]],
    precisions: Sequence[str] | None,
) -> ExportResult:
    inputs = named_inputs(module, example_inputs)
    model = path.absolute()
    with quiet():
        return _pair(module, inputs, model, path, precisions)


def _pair(module, inputs, model, path, precisions):
    with package.beside(model) as folder:
        pair = make_pair(module, inputs, list(precisions or ()))
        written = folder / "version"
        written.mkdir()
        package.write_pair(written, pair)
        check_pair(written, pair)
        tensors = _tensors(pair)
        there = model / "config.pbtxt"
        text = None if there.exists() else config.text("", *tensors)
        if text is None:
            config.check_agrees(there, *tensors)
        version = package.move_into_place(written, model, text)
    return ExportResult("pair", path / version.name, int(version.name))


def _tensors(pair: Pair) -> tuple[list[config.Tensor], list[config.Tensor]]:
    whole = pair.train_json()["parts"][0]
    return tuple(
        [config.Tensor(each["name"], each["dtype"], each["shape"][1:]) for each in whole[field]]
        for field in ("inputs", "outputs")
    )
