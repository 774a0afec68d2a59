"""Python's words for a message's fields: tables that say how each is written and read.

A table maps a key, as callers write it, to a Field. `write` fills a message from a dict by a table,
`read` gives the dict again. What is absent is left to the server, which has PyTorch's defaults.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Field:
    """put: sets it in a message, given the key and a value that is not None.

    get: its value, given the message's fields that are set, by name; None where it is not.
    """

    put: Callable[[Any, str, Any], None]
    get: Callable[[Mapping[str, Any]], Any]


Table = Mapping[str, Field]


def write(message: Any, values: Mapping[str, Any], table: Table, what: str) -> None:
    """Sets in `message` what `values` has; None counts as absent.

    ValueError, naming the key, for one that is not in the table or a value that does not fit.
    """
    for key, value in values.items():
        check_known(key, table, f"parameter of {what}:")
        if value is not None:
            table[key].put(message, key, value)


def read(message: Any, table: Table) -> dict[str, Any]:
    """The dict for which `write` fills `message`."""
    present = {field.name: value for field, value in message.ListFields()}
    values = {key: field.get(present) for key, field in table.items()}
    return {key: value for key, value in values.items() if value is not None}


def check_known(name: Any, known: Iterable[str], what: str) -> None:
    """ValueError, listing what is known, unless `name` is in it."""
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(known)}")


def number(name: str) -> Field:
    return _scalar(name, as_number)


def integer(name: str) -> Field:
    return _scalar(name, _as_integer)


def flag(name: str) -> Field:
    return _scalar(name, _as_flag)


def text(name: str) -> Field:
    return _scalar(name, _as_text)


def numbers(name: str) -> Field:
    """Several numbers: a sequence, an array or a tensor of one dimension, or one number alone."""
    return _repeated(name, as_numbers)


def integers(name: str) -> Field:
    return _repeated(name, lambda key, value: [_as_integer(key, each) for each in value])


def texts(name: str) -> Field:
    return _repeated(name, lambda key, value: [_as_text(key, each) for each in value])


def choice(name: str, words: Mapping[str, Any]) -> Field:
    """One of `words`, each of which stands for a value of the field."""

    def put(message: Any, key: str, value: Any) -> None:
        check_known(value, words, key)
        setattr(message, name, words[value])

    def get(present: Mapping[str, Any]) -> Any:
        return next((word for word, value in words.items() if value == present.get(name)), None)

    return Field(put, get)


def submessage(name: str, table: Table) -> Field:
    """A dict by a table of its own."""

    def put(message: Any, key: str, value: Any) -> None:
        write(getattr(message, name), _as_dict(key, value), table, key)

    return Field(put, lambda present: read(present[name], table) if name in present else None)


def submessages(name: str, table: Table) -> Field:
    """A list of dicts by a table."""

    def put(message: Any, key: str, value: Any) -> None:
        for index, each in enumerate(value):
            what = f"{key}[{index}]"
            write(getattr(message, name).add(), _as_dict(what, each), table, what)

    def get(present: Mapping[str, Any]) -> Any:
        return [read(each, table) for each in present[name]] if name in present else None

    return Field(put, get)


def within(name: str, field: Field) -> Field:
    """A field of the submessage `name`, under a key of the message around it."""

    def get(present: Mapping[str, Any]) -> Any:
        inner = present[name].ListFields() if name in present else ()
        return field.get({descriptor.name: value for descriptor, value in inner})

    return Field(lambda message, key, value: field.put(getattr(message, name), key, value), get)


def as_number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key} must be a number; got {value!r}") from None


def as_numbers(key: str, value: Any) -> list[float]:
    if isinstance(value, str):
        raise ValueError(f"{key} must be numbers; got {value!r}")
    try:
        return [float(each) for each in value]
    except (TypeError, ValueError):
        return [as_number(key, value)]


def _scalar(name: str, convert: Callable[[str, Any], Any]) -> Field:
    return Field(
        lambda message, key, value: setattr(message, name, convert(key, value)),
        lambda present: present.get(name),
    )


def _repeated(name: str, convert: Callable[[str, Any], list[Any]]) -> Field:
    return Field(
        lambda message, key, value: getattr(message, name).extend(convert(key, value)),
        lambda present: list(present[name]) if name in present else None,
    )


def _as_integer(key: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{key} must be an integer; got {value!r}") from None


def _as_flag(key: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{key} must be True or False; got {value!r}")
    return bool(value)


def _as_text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a string; got {value!r}")
    return value


def _as_dict(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict; got {value!r}")
    return value
