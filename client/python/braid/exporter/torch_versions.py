"""Versions of PyTorch that the exporter supports, and what differs between them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from braid._export import ExportError

OLDEST = (2, 11)
NEWEST = (2, 15)


def installed() -> tuple[int, ...]:
    """Major and minor version of PyTorch."""
    return tuple(int(number) for number in torch.__version__.split(".")[:2])


def check() -> str:
    """Checks the installed version. Returns a note for the user, empty for a supported version.

    Raises ExportError for a version older than `OLDEST`. Warns about one newer than `NEWEST`.
    """
    supported = f"torch {_name(OLDEST)} to {_name(NEWEST)}"
    version = installed()
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
    warnings.warn(f"{note}; the export still compares the package with the module", stacklevel=4)
    return note


@contextmanager
def without_tokens() -> Iterator[None]:
    """Traces the error checks of torch.linalg as plain operators, which is the default before 2.13.

    Since 2.13 PyTorch orders them by tokens, which become inputs and outputs of the graph.
    """
    registered = torch._library.simple_registry.singleton.find("aten::_linalg_check_errors")
    with mock.patch.object(registered.effect, "_effect", None):
        yield


def _name(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
