"""Which precisions a pair has beside the model's own, and what becomes of one that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from braid._export import ExportError
from braid.exporter import export_errors

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MODEL_PRECISION = "model"


class PrecisionError(ExportError):
    """One precision beside the model's own cannot be made."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"precision {name}: {reason}")
        self.name = name
        self.reason = reason


class Precisions:
    """by_name: they were asked for. One that is there by default is left out where it cannot be
    made: autocast is not for all models."""

    def __init__(self, names: list[str], by_name: bool) -> None:
        self.names = names
        self._by_name = by_name
        self._left_out: list[PrecisionError] = []

    def leave_out(self, error: PrecisionError) -> None:
        if self._by_name:
            raise error
        self.names = [each for each in self.names if each != error.name]
        self._left_out.append(error)

    def reason(self) -> str:
        return "; ".join(f"without {each.name}: {each.reason}" for each in self._left_out)


@contextmanager
def precision_errors(name: str) -> Iterator[None]:
    """PrecisionError for whatever fails, unless the precision is the model's own."""
    try:
        yield
    except Exception as error:
        if name == MODEL_PRECISION:
            raise
        raise PrecisionError(name, str(export_errors.to_export_error(error))) from error
