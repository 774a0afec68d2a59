"""What `braid.export` does. All but torch.export is private to PyTorch, and of one version."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from braid._export import ExportError, ExportResult

TORCH_VERSION = "2.11"


def export_model(
    module: Any,
    example_inputs: Any,
    path: str | os.PathLike[str],
    format: str,
    stages: Sequence[Sequence[str]],
    precisions: Sequence[str] | None,
) -> ExportResult:
    """As `braid.export`, which says all about it."""
    if torch.__version__.split(".")[:2] != TORCH_VERSION.split("."):
        raise ExportError(
            f"torch {torch.__version__} is installed; packages for Braid are made with "
            f"torch {TORCH_VERSION}: pip install 'torch=={TORCH_VERSION}.*'"
        )
    from braid.exporter.export import export_checked

    return export_checked(module, example_inputs, Path(path), format, stages, precisions)
