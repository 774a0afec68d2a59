"""What a rejected request must look like."""

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

    change: what makes a good request bad; it changes the request in place.
    words: what the message must contain: the field or the tensor, what came, what is right.
    field: what google.rpc.BadRequest must name; None: the status carries no such detail.
    """

    name: str
    change: Callable[[Any], None]
    words: tuple[str, ...]
    field: str | None
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT

    def expect(self, call: Callable[[Any], Any], request: Any) -> None:
        """Sends the good `request`, made bad, and checks the status that comes back."""
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
    """A number out of its range. path: of the field, "optimizer.sgd.lr" or "losses[0].beta"."""
    return Rejection(
        f"{path} {value}",
        assigner(**{"__".join(re.findall(r"\w+", path)): value}),
        (path.rpartition(".")[2], f"{value:g}"),
        path,
    )


def assigner(**values: Any) -> Callable[[Any], None]:
    """Sets the request's fields to these values. "a__b" is field b of field a, "a__0" the first of
    the repeated field a; a list takes the place of a repeated field."""

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
