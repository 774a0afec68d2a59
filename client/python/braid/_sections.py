"""Tables of the keys of a YAML spec, which may be nested.

A ValueError names the path of the key: "data.inputs.x.dtyp: unknown key (expected one of …)".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braid._fields import Field, Table


def write(message: Any, values: Any, table: Table, path: str) -> None:
    """Sets the fields of `message` from a dict. path: of the dict in the spec; "": the top."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: {values!r} (expected keys and values)")
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in table:
            raise ValueError(f"{where}: unknown key (expected one of {', '.join(table)})")
        if value is not None:
            table[key].put(message, where, value)


def set_fields(message: Any) -> dict[str, Any]:
    """Returns the set fields of a message by name, as Field.get takes them."""
    return {field.name: value for field, value in message.ListFields()}


def read(present: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Returns the dict for which `write` sets the fields `present`."""
    values = {key: field.get(present) for key, field in table.items()}
    return {key: value for key, value in values.items() if value is not None}


def group(table: Table) -> Field:
    """Field of a dict whose keys are fields of the same message."""
    return Field(
        lambda message, key, value: write(message, value, table, key),
        lambda present: read(present, table) or None,
    )


def section(name: str, table: Table) -> Field:
    """Field of a dict whose keys are fields of the submessage `name`."""

    def put(message: Any, key: str, value: Any) -> None:
        section = getattr(message, name)
        section.SetInParent()
        write(section, value, table, key)

    return Field(
        put,
        lambda present: read(set_fields(present[name]), table) if name in present else None,
    )
