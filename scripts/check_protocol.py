#!/usr/bin/env python3
"""Checks that programs written for the last release still work: compares braid.v1 with the
descriptors of that release. Additions pass; removed, renamed, renumbered and retyped names fail.

usage: check_protocol.py [RELEASED [CURRENT]]

RELEASED, CURRENT: serialized FileDescriptorSets; default: proto/released/braid_v1.binpb and
client/python/braid/protocol.binpb, which scripts/generate.sh makes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

ROOT = Path(__file__).resolve().parent.parent
RELEASED = ROOT / "proto/released/braid_v1.binpb"
CURRENT = ROOT / "client/python/braid/protocol.binpb"
PACKAGE = "braid.v1"


class Package(NamedTuple):
    """Definitions of a package, by full name. Messages include nested ones and map entries."""

    messages: dict[str, DescriptorProto]
    enums: dict[str, EnumDescriptorProto]
    services: dict[str, ServiceDescriptorProto]


def read_package(files: FileDescriptorSet) -> Package:
    package = Package({}, {}, {})

    def add(scope: str, messages: list, enums: list) -> None:
        package.enums.update({f"{scope}.{enum.name}": enum for enum in enums})
        for message in messages:
            name = f"{scope}.{message.name}"
            package.messages[name] = message
            add(name, message.nested_type, message.enum_type)

    for file in files.file:
        if file.package == PACKAGE:
            add(PACKAGE, file.message_type, file.enum_type)
            package.services.update({f"{PACKAGE}.{each.name}": each for each in file.service})
    return package


def compare(released: Package, current: Package) -> list[str]:
    """Returns one line for each incompatible change."""
    errors = []
    for compare_members, before, after in (
        (_compare_fields, released.messages, current.messages),
        (_compare_values, released.enums, current.enums),
        (_compare_methods, released.services, current.services),
    ):
        for name, old in before.items():
            if name in after:
                found = compare_members(old, after[name])
                errors += [f"{name}.{member}: {change}" for member, change in found]
            else:
                errors.append(f"{name}: removed (expected: kept)")
    return errors


# Each of these yields (member, change).
def _compare_fields(old: DescriptorProto, new: DescriptorProto) -> Iterator[tuple[str, str]]:
    reserved = [range(each.start, each.end) for each in new.reserved_range]
    yield from _compare_numbers(old.field, new.field, reserved, new.reserved_name)
    after = {field.name: field for field in new.field}
    for field in old.field:
        if field.name in after:
            before, now = _field_type(field, old), _field_type(after[field.name], new)
            if before != now:
                yield field.name, f"type changed to '{now}' (expected '{before}')"


def _compare_values(
    old: EnumDescriptorProto, new: EnumDescriptorProto
) -> Iterator[tuple[str, str]]:
    # Unlike a message's, an enum's reserved range includes its end.
    reserved = [range(each.start, each.end + 1) for each in new.reserved_range]
    yield from _compare_numbers(old.value, new.value, reserved, new.reserved_name)


def _compare_methods(
    old: ServiceDescriptorProto, new: ServiceDescriptorProto
) -> Iterator[tuple[str, str]]:
    after = {method.name: _signature(method) for method in new.method}
    for method in old.method:
        before, now = _signature(method), after.get(method.name)
        if now is None:
            yield method.name, "removed (expected: kept)"
        elif before != now:
            yield method.name, f"signature changed to '{now}' (expected '{before}')"


def _compare_numbers(
    old: list, new: list, reserved: list[range], reserved_names: list[str]
) -> Iterator[tuple[str, str]]:
    numbers = {each.name: each.number for each in new}
    names = {each.number: each.name for each in new}
    for name, number in ((each.name, each.number) for each in old):
        if name in numbers:
            if numbers[name] != number:
                yield name, f"number changed to {numbers[name]} (expected {number})"
        elif number in names:
            yield name, f"number {number} now belongs to '{names[number]}' (expected '{name}')"
        elif name not in reserved_names or not any(number in each for each in reserved):
            yield name, f"removed (expected: kept, or number {number} and the name reserved)"


def _field_type(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Returns the type as a proto file would say it: "repeated .braid.v1.Tensor"."""
    label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
    scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    words = [field.type_name or scalar]
    if label != "optional" or field.proto3_optional:
        words.insert(0, label)
    if field.HasField("oneof_index") and not field.proto3_optional:
        words.append(f"in oneof {message.oneof_decl[field.oneof_index].name}")
    return " ".join(words)


def _signature(method: MethodDescriptorProto) -> str:
    request = "stream " * method.client_streaming + method.input_type
    response = "stream " * method.server_streaming + method.output_type
    return f"({request}) returns ({response})"


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]]
    released, current = (
        read_package(FileDescriptorSet.FromString(path.read_bytes()))
        for path in paths + [RELEASED, CURRENT][len(paths) :]
    )
    if not released.messages:
        sys.exit(f"check_protocol: the released descriptors have no messages of {PACKAGE}")
    errors = compare(released, current)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"check_protocol: {len(released.messages)} released messages, {len(errors)} errors")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
