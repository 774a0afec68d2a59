"""Implementation of `braid.export`.

checks/ verifies models and packages, formats/ writes them, model/ handles a module's state, trace/
records graphs, and passes/ rewrites graphs. Most PyTorch functions used here, except torch.export,
are private; `torch_versions` holds what differs between versions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from braid._export import ExportResult
from braid.exporter import torch_versions


def export_model(
    module: Any,
    example_inputs: Any,
    path: str | os.PathLike[str],
    format: str,
    stages: Sequence[Sequence[str]],
    precisions: Sequence[str] | None,
    eval_modules: Sequence[str],
    output_names: Sequence[str] | None,
    assign: Callable[[str], int] | None = None,
    dynamic: Any = None,
    check: str = "sample",
    batch_dim: Any = None,
) -> ExportResult:
    """Exports `module`; see `braid.export`.

    assign: returns the version number for a model; None: the next in the folder.
    """
    note = torch_versions.check()
    from braid.exporter.export import export_checked

    result = export_checked(
        module,
        example_inputs,
        Path(path),
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
    return replace(result, notes=(*result.notes, note)) if note else result
