"""Additional precisions of a pair, and handling of those that cannot be exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from braid._export import ExportError
from braid.exporter import export_errors

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MODEL_PRECISION = "model"


class PrecisionError(ExportError):
    """An additional precision cannot be exported."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"precision {name}: {reason}")
        self.name = name
        self.reason = reason


class Precisions:
    """Additional precisions to export.

    by_name: True if the user requested them. A default precision that fails is skipped, because
    not every model works under autocast.
    """

    def __init__(self, names: list[str], by_name: bool) -> None:
        self.names = names
        self._by_name = by_name
        self._skipped: list[PrecisionError] = []

    def skip(self, error: PrecisionError) -> None:
        """Skips the precision that failed, or raises `error` if the user requested it."""
        if self._by_name:
            raise error
        self.names = [each for each in self.names if each != error.name]
        self._skipped.append(error)

    def reason(self) -> str:
        return "; ".join(f"without {each.name}: {each.reason}" for each in self._skipped)


@contextmanager
def precision_errors(name: str) -> Iterator[None]:
    """Converts any error into a PrecisionError, unless `name` is the model's own precision."""
    try:
        yield
    except Exception as error:
        if name == MODEL_PRECISION:
            raise
        raise PrecisionError(name, str(export_errors.to_export_error(error))) from error
