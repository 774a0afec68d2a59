"""Tables that map keys of Python dicts to fields of protocol messages.

`write` fills a message from a dict according to a table, and `read` returns the dict again. Absent
fields have the server's defaults, which are PyTorch's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor


@dataclass(frozen=True)
class Field:
    """Accessors of one field.

    put: sets the field of a message from a key and a value other than None.
    get: returns the field's value from the message's set fields by name, or None.
    """

    put: Callable[[Any, str, Any], None]
    get: Callable[[Mapping[str, Any]], Any]


Table = Mapping[str, Field]

# Integers that a field holds, by FieldDescriptor.cpp_type.
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: "a 32-bit integer",
    FieldDescriptor.CPPTYPE_INT64: "a 64-bit integer",
    FieldDescriptor.CPPTYPE_UINT32: "an unsigned 32-bit integer",
    FieldDescriptor.CPPTYPE_UINT64: "an unsigned 64-bit integer",
}


def write(message: Any, values: Mapping[str, Any], table: Table, what: str) -> None:
    """Sets the fields of `message` from `values`. Skips None.

    what: name of `values` in messages.
    Raises ValueError, with the key, for an unknown key or an invalid value.
    """
    for key, value in values.items():
        check_known(key, table, f"{what}: unknown parameter")
        if value is not None:
            table[key].put(message, key, value)


def read(message: Any, table: Table) -> dict[str, Any]:
    """Returns the dict for which `write` creates `message`."""
    present = {field.name: value for field, value in message.ListFields()}
    values = {key: field.get(present) for key, field in table.items()}
    return {key: value for key, value in values.items() if value is not None}


def check_known(name: Any, known: Iterable[str], what: str) -> None:
    """Raises ValueError with the known names unless `name` is one. what: start of the message."""
    if name not in tuple(known):  # A dict would raise TypeError for a list.
        raise ValueError(f"{what} {name!r} (expected one of {', '.join(known)})")


def number(name: str) -> Field:
    return _scalar(name, as_number)


def days(name: str) -> Field:
    """Field of seconds, given in days."""
    seconds = _scalar(name, lambda key, value: as_number(key, value) * 86400)

    def get(present: Mapping[str, Any]) -> Any:
        return present[name] / 86400 if name in present else None

    return Field(seconds.put, get)


def integer(name: str) -> Field:
    return _scalar(name, _as_integer)


def flag(name: str) -> Field:
    return _scalar(name, _as_flag)


def text(name: str) -> Field:
    return _scalar(name, _as_text)


def numbers(name: str) -> Field:
    """Field of numbers: a sequence, a one-dimensional array or tensor, or one number."""
    return _repeated(name, as_numbers)


def integers(name: str) -> Field:
    return _repeated(name, lambda key, value: [_as_integer(key, each) for each in value])


def texts(name: str) -> Field:
    return _repeated(name, lambda key, value: [_as_text(key, each) for each in value])


def choice(name: str, words: Mapping[str, Any]) -> Field:
    """Field with named values."""

    def put(message: Any, key: str, value: Any) -> None:
        check_known(value, words, f"{key}: unknown value")
        setattr(message, name, words[value])

    def get(present: Mapping[str, Any]) -> Any:
        return next((word for word, value in words.items() if value == present.get(name)), None)

    return Field(put, get)


def submessage(name: str, table: Table) -> Field:
    """Field of one dict with its own table."""

    def put(message: Any, key: str, value: Any) -> None:
        write(getattr(message, name), _as_dict(key, value), table, key)

    return Field(put, lambda present: read(present[name], table) if name in present else None)


def submessages(name: str, table: Table) -> Field:
    """Field of a list of dicts with a table."""

    def put(message: Any, key: str, value: Any) -> None:
        for index, each in enumerate(value):
            what = f"{key}[{index}]"
            write(getattr(message, name).add(), _as_dict(what, each), table, what)

    def get(present: Mapping[str, Any]) -> Any:
        return [read(each, table) for each in present[name]] if name in present else None

    return Field(put, get)


def within(name: str, field: Field) -> Field:
    """Field of the submessage `name`, under a key of the outer dict."""

    def get(present: Mapping[str, Any]) -> Any:
        inner = present[name].ListFields() if name in present else ()
        return field.get({descriptor.name: value for descriptor, value in inner})

    return Field(lambda message, key, value: field.put(getattr(message, name), key, value), get)


def set_value(message: Any, name: str, key: str, value: Any) -> None:
    """Sets a field, or appends the values of a list. Raises ValueError for integers that the field
    cannot hold."""
    try:
        if isinstance(value, list):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except ValueError:
        size = _INTEGERS[message.DESCRIPTOR.fields_by_name[name].cpp_type]
        raise ValueError(f"{key}: {value!r} (expected {size})") from None


def as_number(key: str, value: Any) -> float:
    if isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{key}: {value!r} (expected a number)")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{key}: {value!r} (expected a number)") from None


def as_numbers(key: str, value: Any) -> list[float]:
    if isinstance(value, str):
        raise ValueError(f"{key}: {value!r} (expected numbers)")
    try:
        return [as_number(key, each) for each in value]
    except (TypeError, ValueError):
        return [as_number(key, value)]


def _scalar(name: str, convert: Callable[[str, Any], Any]) -> Field:
    return Field(
        lambda message, key, value: set_value(message, name, key, convert(key, value)),
        lambda present: present.get(name),
    )


def _repeated(name: str, convert: Callable[[str, Any], list[Any]]) -> Field:
    return Field(
        lambda message, key, value: set_value(message, name, key, convert(key, value)),
        lambda present: list(present[name]) if name in present else None,
    )


def _as_integer(key: str, value: Any) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise ValueError(f"{key}: {value!r} (expected an integer)")


def _as_flag(key: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{key}: {value!r} (expected True or False)")
    return bool(value)


def _as_text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: {value!r} (expected a string)")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key}: {value!r} (expected text without surrogates)") from None
    return value


def _as_dict(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}: {value!r} (expected a dict)")
    return value
