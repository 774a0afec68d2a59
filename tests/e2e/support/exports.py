"""Exported and compiled test models, kept in build/ from one run to the next.

A model is exported again if anything has changed that the files depend on: the exporter, PyTorch,
the processor, the module with its code and weights, the example or the options. Tests of the
exporter itself do not use this.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import os
import pickle
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import braid
import torch
from e2e.support.server import ROOT
from torch import nn

_KEPT = ROOT / "build/test-models"
_SOURCES = (ROOT / "client/python/braid", ROOT / "tests/e2e/support")
_UNUSED_SECONDS = 7 * 24 * 3600


def export(
    module: nn.Module, inputs: Any, directory: Path, format: str = "pair", **options: Any
) -> None:
    """Like braid.export, into a directory that does not exist."""
    kept(
        directory,
        module,
        ("export", inputs, format, options),
        lambda target: braid.export(module, inputs, target, format, **options),
    )


def kept(
    directory: Path, module: nn.Module, settings: Any, make: Callable[[Path], object]
) -> None:
    """Copies what `make` wrote before for an equal module and equal settings, or calls it.

    Modules and settings that cannot be pickled are never kept.
    """
    assert not directory.exists()
    key = _key(module, settings)
    if key is None:
        make(directory)
        return
    place = _KEPT / key
    if not place.exists():
        _KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_KEPT, prefix="new-") as made:
            make(Path(made) / directory.name)
            _store(Path(made) / directory.name, place)
    os.utime(place)
    shutil.copytree(place, directory)


def _store(made: Path, place: Path) -> None:
    try:
        made.rename(place)
    except OSError:
        if not place.exists():  # Otherwise another process was faster.
            raise
    for other in _KEPT.iterdir():
        if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


def _key(module: nn.Module, settings: Any) -> str | None:
    content = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save((module, settings), content)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return None
    digest = hashlib.sha256(_environment())
    digest.update(str(torch.get_default_dtype()).encode())
    digest.update(content.getvalue())
    for path in sorted({inspect.getfile(type(each)) for each in module.modules()}):
        if Path(path).is_relative_to(ROOT / "tests"):
            digest.update(Path(path).read_bytes())
    return digest.hexdigest()


@functools.cache
def _environment() -> bytes:
    digest = hashlib.sha256()
    cpu = torch.backends.cpu.get_cpu_capability()
    versions = (torch.__version__, platform.python_version(), platform.processor(), cpu)
    digest.update(repr(versions).encode())
    for folder in _SOURCES:
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.digest()
