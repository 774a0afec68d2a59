#!/usr/bin/env python3
"""Prints docs/reference/protocol.md: the protocol braid.v1, from the comments of its files.

usage: document_protocol.py < DESCRIPTORS    a FileDescriptorSet with source information
"""

from __future__ import annotations

import itertools
import sys

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto as Message
from google.protobuf.descriptor_pb2 import EnumDescriptorProto as Enum
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from markdown_text import wrapped

PACKAGE = "braid.v1"
INTRODUCTION = """\
# Protocol braid.v1

Look up a message or a method of Braid's own gRPC services, besides Triton's. [gRPC API](grpc.md) explains how to use
them. `scripts/generate.sh` writes this page from the comments in `proto/`. """
# Numbers of fields in descriptor.proto, from which paths of locations are made.
MESSAGE, ENUM, SERVICE = 4, 5, 6
MESSAGE_FIELD, NESTED_MESSAGE, NESTED_ENUM = 2, 3, 4


class File:
    """A file of the protocol with the comments of its elements, by their path."""

    def __init__(self, proto: descriptor_pb2.FileDescriptorProto) -> None:
        self.proto = proto
        self._comments = {
            tuple(location.path): location.leading_comments or location.trailing_comments
            for location in proto.source_code_info.location
        }

    def comment(self, path: tuple[int, ...]) -> str:
        """Returns a comment as one paragraph."""
        return " ".join(self._comments.get(path, "").split())

    def blocks(self, path: tuple[int, ...]) -> list[str]:
        """Returns a comment as Markdown. Lines that are indented stay as they are."""
        made: list[str] = []
        for paragraph in self._comments.get(path, "").split("\n\n"):
            for indented, group in itertools.groupby(
                paragraph.splitlines(), lambda line: line.startswith("   ")
            ):
                lines = [line.strip() for line in group]
                if indented:
                    made += ["", "```", *lines, "```"]
                elif any(lines):
                    made += ["", wrapped(" ".join(lines))]
        return made


def kind(field: Field) -> str:
    if field.type_name:
        name = field.type_name.removeprefix(f".{PACKAGE}.").removeprefix(".")
    else:
        name = Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {name}" if field.label == Field.LABEL_REPEATED else name


def enum(file: File, proto: Enum, path: tuple[int, ...], outer: str) -> list[str]:
    made = ["", f"### {outer}{proto.name}", *file.blocks(path), ""]
    for index, value in enumerate(proto.value):
        text = file.comment((*path, 2, index))
        made.append(wrapped(f"`{value.name}`" + (f": {text}" if text else ""), "  ", "- "))
    return made


def message(file: File, proto: Message, path: tuple[int, ...], outer: str) -> list[str]:
    made = ["", f"### {outer}{proto.name}", *file.blocks(path)]
    if proto.field:
        made.append("")
    for index, field in enumerate(proto.field):
        text = file.comment((*path, MESSAGE_FIELD, index))
        line = f"`{field.name}` ({kind(field)})" + (f": {text}" if text else "")
        made.append(wrapped(line, "  ", "- "))
    name = f"{outer}{proto.name}."
    for index, nested in enumerate(proto.nested_type):
        if not nested.options.map_entry:
            made += message(file, nested, (*path, NESTED_MESSAGE, index), name)
    for index, nested_enum in enumerate(proto.enum_type):
        made += enum(file, nested_enum, (*path, NESTED_ENUM, index), name)
    return made


def service(file: File, index: int) -> list[str]:
    proto, path = file.proto.service[index], (SERVICE, index)
    made = ["", f"## {proto.name}", *file.blocks(path)]
    for number, method in enumerate(proto.method):
        sent, returned = (name.split(".")[-1] for name in (method.input_type, method.output_type))
        sent = f"stream {sent}" if method.client_streaming else sent
        returned = f"stream {returned}" if method.server_streaming else returned
        made += ["", f"### {method.name}", "", f"`{method.name}({sent}) → {returned}`"]
        made += file.blocks((*path, 2, number))
    return made


def page(descriptors: descriptor_pb2.FileDescriptorSet) -> str:
    made = [INTRODUCTION.rstrip()]
    files = [File(proto) for proto in descriptors.file if proto.package == PACKAGE]
    for file in files:
        for index in range(len(file.proto.service)):
            made += service(file, index)
    for file in files:
        made += ["", f"## Messages of {file.proto.name.split('/')[-1]}"]
        for index, proto in enumerate(file.proto.message_type):
            made += message(file, proto, (MESSAGE, index), "")
        for index, proto_enum in enumerate(file.proto.enum_type):
            made += enum(file, proto_enum, (ENUM, index), "")
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(descriptor_pb2.FileDescriptorSet.FromString(sys.stdin.buffer.read())))
