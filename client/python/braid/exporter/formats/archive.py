"""Zip archives of models, read without PyTorch's version-dependent readers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from enum import Enum
from pathlib import Path

from braid._export import ExportError
from braid.exporter import export_errors

SELF_TEST = "extra/self_test.json"
MANIFEST = "extra/train.json"
_PROGRAM = "models/model.json"


class Kind(Enum):
    PAIR = "exported pair"
    PROGRAM = "exported program"
    AOTI = "AOTInductor package"
    TORCHSCRIPT = "TorchScript module"


class Archive:
    """Model package in a file. The constructor raises ExportError for any other file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with export_errors.wrap_errors(f"{path}: cannot be read"):
            with zipfile.ZipFile(path) as file:
                # One folder, named after the file, contains all records.
                self._root = file.namelist()[0].partition("/")[0] if file.namelist() else ""
                names = [name.removeprefix(f"{self._root}/") for name in file.namelist()]
        self._names = set(names)
        if MANIFEST in names:
            self.kind = Kind.PAIR
        elif any(name.startswith("data/aotinductor/") for name in names):
            self.kind = Kind.AOTI
        elif _PROGRAM in names:
            self.kind = Kind.PROGRAM
        elif any(name.startswith("code/") for name in names):
            self.kind = Kind.TORCHSCRIPT
        else:
            raise ExportError(
                f"{path}: unknown format (expected an exported pair, a program of "
                f"torch.export.save, an AOTInductor package or a TorchScript module)"
            )

    @property
    def torch_version(self) -> str:
        """Version of PyTorch that wrote the pair or program, for example "2.15.0"."""
        record = MANIFEST if self.kind == Kind.PAIR else _PROGRAM
        try:
            return json.loads(self._read(record))["torch_version"].partition("+")[0]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExportError(f"{self.path}: {record}: no torch_version") from error

    @property
    def has_self_test(self) -> bool:
        return SELF_TEST in self._names

    def self_test(self) -> str:
        return self._read(SELF_TEST)

    def add_self_test(self, text: str) -> None:
        """Atomically rewrites the file with the record. Readers see the old file or the new one."""
        path = self.path.resolve()
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            os.close(handle)
            try:
                self._write_with(text, Path(name))
                os.replace(name, path)
            finally:
                Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise ExportError(f"{path}: cannot be written: {error.strerror}") from error
        self._names.add(SELF_TEST)

    def _write_with(self, text: str, written: Path) -> None:
        shutil.copy(self.path, written)
        with zipfile.ZipFile(written, "a", zipfile.ZIP_STORED) as file:
            file.writestr(f"{self._root}/{SELF_TEST}", text)
        with written.open("rb") as file:
            os.fsync(file.fileno())

    def _read(self, record: str) -> str:
        with export_errors.wrap_errors(f"{self.path}: {record}: cannot be read"):
            with zipfile.ZipFile(self.path) as file:
                return file.read(f"{self._root}/{record}").decode()
