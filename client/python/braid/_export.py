"""What `braid.export` is called with, gives and raises. Needs no torch: the exporter, which does,
is imported when something is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union

if TYPE_CHECKING:
    import os

    import torch

Format = Literal["auto", "pair", "torchscript", "aot"]


class ExportError(Exception):
    """The model was not exported, and nothing was written. The message says why and, where a line
    of the model is the reason, which."""


@dataclass(frozen=True)
class ExportResult:
    """What was written.

    format: "pair", "torchscript" or "aot".
    path: the version's folder, as in models/net/1.
    version: its number.
    reason: why it is another format than the first choice, why it is not batched, or what to know
        about the package; empty if there is nothing.
    notes: each part of the reason, and what follows from it for those who serve or train the model.
    """

    format: str
    path: Path
    version: int
    reason: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)


def export(
    module: torch.nn.Module,
    example_inputs: Union[Mapping[str, torch.Tensor], Sequence[torch.Tensor]],
    path: Union[str, os.PathLike[str]],
    format: Format = "auto",
    *,
    stages: Sequence[Sequence[str]] = (),
    precisions: Sequence[str] | None = None,
) -> ExportResult:
    """Writes `module` as the next version of the model whose folder is `path`.

    module: on the CPU or on one GPU, which is where the package will be served. It is left as it
        was found, in training or evaluation mode; both are exported.
    example_inputs: a dict of the names of forward's arguments to tensors, or the tensors in
        forward's order. Dim 0 of each is the batch, and of any size in the package; the other
        dims are fixed. The package is checked with values that lie among theirs, column by
        column: some rows that are unlike each other find more than one.
    path: the model's folder in a repository, made if it is not there. A config.pbtxt that is there
        stays, and has to agree in names, datatypes, dims, and in whether there are batches.
    format: "pair", graphs for training and inference; "torchscript"; "aot", compiled for
        inference alone; "auto", the pair, or TorchScript where that cannot be done.
    stages: chains of submodules that, one after the other, are the whole model, as in
        [["features", "classifier"]]: such a model can be trained as a pipeline. Pair only.
    precisions: of training and inference beside the model's own, "bfloat16" and "float16".
        Default, for a model with parameters in float32: "bfloat16", and "float16" too on a GPU,
        without those that cannot be made, as the result's reason says then. Each makes the
        export take as long again. Pair only.

    The package is read back and compared with the module before it is moved into place: outputs,
    gradients and buffers, at batches of 1, 2, 7 and 33 rows.

    A server merges requests and splits batches only if a row's outputs do not depend on the other
    rows. This is proven by values, in evaluation mode. Otherwise the config.pbtxt that is written
    has `max_batch_size: 0`, requests run whole, and the result's reason says which rows depend on
    which.

    ExportError if it cannot be done, with the reason; TypeError and ValueError if the arguments
    make no sense; ImportError without torch.
    """
    from braid.exporter import export_model

    return export_model(module, example_inputs, path, format, stages, precisions)
