"""Versions of PyTorch that the exporter supports, and what differs between them."""

from __future__ import annotations

import warnings

import torch

from braid._export import ExportError

OLDEST = (2, 11)
NEWEST = (2, 15)


def check() -> str:
    """Checks the installed version. Returns a note for the user, empty for a supported version.

    Raises ExportError for a version older than `OLDEST`. Warns about one newer than `NEWEST`.
    """
    supported = f"torch {_name(OLDEST)} to {_name(NEWEST)}"
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if version < OLDEST:
        raise ExportError(
            f"torch: {torch.__version__} is too old (braid.export works with {supported}): "
            f"pip install 'torch>={_name(OLDEST)}'"
        )
    if version <= NEWEST:
        return ""
    note = (
        f"torch {torch.__version__} is newer than the versions that braid.export is tested with "
        f"({supported})"
    )
    warnings.warn(f"{note}; the package is compared with the module as always", stacklevel=4)
    return note


def _name(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
