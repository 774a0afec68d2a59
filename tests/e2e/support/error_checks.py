"""Checks of rejected requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from e2e.support.protocol import violated_fields


@dataclass(frozen=True)
class Rejection:
    """A row of an error table.

    change: changes a valid request in place so that it becomes invalid.
    words: what the message must contain: the field or tensor, the value and what is expected.
    field: the field in google.rpc.BadRequest; None if the status has no such detail.
    """

    name: str
    change: Callable[[Any], None]
    words: tuple[str, ...]
    field: str | None
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT

    def expect(self, call: Callable[[Any], Any], request: Any) -> None:
        """Makes the valid `request` invalid, sends it and checks the returned status."""
        self.change(request)
        with pytest.raises(grpc.RpcError) as caught:
            call(request)
        error = caught.value
        assert error.code() == self.code, error.details()
        for word in self.words:
            assert word in error.details(), error.details()
        fields = [] if self.field is None else [self.field]
        assert violated_fields(error) == fields, error.details()


def ids(rows: list[Rejection]) -> list[str]:
    return [row.name for row in rows]


def number(path: str, value: float) -> Rejection:
    """A number out of range. path: of the field, "optimizer.sgd.lr" or "losses[0].beta"."""
    return Rejection(
        f"{path} {value}",
        assigner(**{"__".join(re.findall(r"\w+", path)): value}),
        (path.rpartition(".")[2], f"{value:g}"),
        path,
    )


def assigner(**values: Any) -> Callable[[Any], None]:
    """Returns a function that sets fields of a request. "a__b" is field b of field a. "a__0" is the
    first element of the repeated field a. A list replaces a repeated field."""

    def change(request: Any) -> None:
        for path, value in values.items():
            *parents, last = path.split("__")
            target = request
            for parent in parents:
                target = target[int(parent)] if parent.isdigit() else getattr(target, parent)
            if isinstance(value, list):
                target.ClearField(last)
                getattr(target, last).extend(value)
            else:
                setattr(target, last, value)

    return change
