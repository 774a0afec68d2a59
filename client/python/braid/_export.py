"""Interface of `braid.export`. Does not import torch; the exporter, imported on use, does."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

if TYPE_CHECKING:
    import torch

    from braid.client import Client

Format = Literal["auto", "pair", "torchscript", "aot"]
Check = Literal["sample", "full"]
# Input name → dim → size: "seq", ("seq", 1, 512) or a torch.export.Dim.
Dynamic = Mapping[str, Mapping[int, Any]]


class ExportError(Exception):
    """The model was not exported, and nothing was written.

    The message contains the reason and, if known, the model's line.
    """


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    format: "pair", "torchscript" or "aot".
    path: folder of the version, for example models/net/1.
    version: version number.
    reason: why the format is not the first choice, why the model is not batched, or other remarks
        on the package; may be empty.
    notes: parts of the reason, and consequences for serving and training.
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
    eval_modules: Sequence[str] = (),
    output_names: Sequence[str] | None = None,
    dynamic: Dynamic | None = None,
    check: Check = "sample",
    batch_dim: Mapping[str, int] | None = None,
    server: Client | str | None = None,
) -> ExportResult:
    """Exports `module` as the next version of the model in the folder `path`.

    module: module on the CPU or on one GPU; the package is served on the same kind of device.
        Training and evaluation mode are both exported. The module is restored afterwards.
    example_inputs: a dict from argument names of forward to tensors, or the tensors in order. Dim
        0, or that of `batch_dim`, is the batch, of any size in the package; other dims are fixed,
        unless `dynamic` names them. The export checks the package with values in the range of each
        column, so several different rows find more errors than one.
    path: folder of the model in a repository, created if missing. An existing config.pbtxt is
        kept; its names, dtypes, dims and batching must match, so that clients of earlier versions
        do not fail. The example's names, dtypes and dims are compared before the work. A dim of -1
        promises clients any size, so `dynamic` must name it.
    format: "pair": graphs for training and inference; "torchscript"; "aot": compiled, inference
        only; "auto": the pair, or TorchScript if a pair is not possible.
    stages: chains of submodules that, in sequence, equal the whole model, for example
        [["features", "classifier"]], for pipeline training. Pair only.
    precisions: "bfloat16" and "float16", for training and inference in addition to the model's own
        precision. Default for float32 parameters: "bfloat16", and on a GPU also "float16"; a
        default precision that fails is skipped, see the result's reason. Each one multiplies the
        export time. Pair only.
    eval_modules: regular expressions that are searched in the names of submodules, for a second set
        of training graphs, in which these modules and their submodules are in evaluation mode. A
        trainer uses it if its `eval_modules` choose the same modules. Pair only; TorchScript needs
        no export of its own.
    output_names: a name for each output, in order. None: dict keys, fields of dataclasses and named
        tuples, and "output__0", "output__1" and so on for other outputs.
    dynamic: dims that vary in size: by input and dim, a name such as "seq", a name with its minimum
        and maximum such as ("seq", 1, 512), a `torch.export.Dim`, or a multiple of one. Dims with
        the same name have the same size. Without bounds, sizes of at least 1 are allowed. The
        example's sizes must be within the bounds. For example {"ids": {1: "seq"}, "mask": {1:
        "seq"}}.
    check: comparison of a pair with the module. "sample": an expensive model, of more than 50 M
        parameters or 1 GFLOP per row, is compared for batches of 7 rows and of 1 row, and in lower
        precisions for 7 rows; "full": for all batches. Other models are always compared in full.
    batch_dim: dim of the batch in inputs and outputs where it is not dim 0, for example
        {"x": 1, "output__0": 1} for [time, batch, features]. The server takes and returns such
        tensors as they are. Not for "aot", and not together with `stages`.
    server: client or address of the server of this repository. The server then assigns the
        version's number, so that no version that a trainer publishes can have it. None: the number
        after the highest in the folder; the server ignores the folder if it has published a version
        of that number.

    Before it publishes the package, the export reads it back and compares outputs, gradients and
    buffers with the module, for batches of 1, 2, 7 and 33 rows, and for several of the sizes in
    `dynamic`.

    A server merges requests and splits batches only if a row's outputs do not depend on other rows.
    The export tests this numerically in evaluation mode. If rows depend on each other, it writes
    `max_batch_size: 0` to config.pbtxt, so requests run whole, and the result's reason names the
    rows.

    An export that takes longer than 2 s shows its current stage on stderr if that is a terminal, and
    otherwise logs the stages at level INFO of the logger "braid".

    Raises ExportError with the reason if the module cannot be exported, TypeError or ValueError for
    invalid arguments, ImportError without torch, and BraidError if the server assigns no number.
    """
    if isinstance(example_inputs, (str, os.PathLike)) or not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"example_inputs: a {type(example_inputs).__name__}, path: a {type(path).__name__} "
            "(expected tensors, then a folder: braid.export(module, example_inputs, path))"
        )
    from braid.exporter import export_model

    assign = None if server is None else functools.partial(_assign, server)
    return export_model(
        module,
        example_inputs,
        path,
        format,
        stages,
        precisions,
        eval_modules,
        output_names,
        assign,
        dynamic,
        check,
        batch_dim,
    )


def _assign(server: Client | str, model: str) -> int:
    """Returns the version number that the server assigns."""
    if not isinstance(server, str):
        return server.reserve_version(model)
    from braid.client import connect

    with connect(server) as client:
        return client.reserve_version(model)
