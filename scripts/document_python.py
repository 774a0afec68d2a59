#!/usr/bin/env python3
"""Prints docs/reference/python.md: the Python API, from its signatures and docstrings.

usage: document_python.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client/python"))

import braid  # noqa: E402
from markdown_text import wrapped  # noqa: E402

INTRODUCTION = """\
# Python API

Look up a class, method or function of the package `braid`. `scripts/generate.sh` writes this page from the docstrings.

Install the package with `pip install ./client/python`. To export models, install it together with
PyTorch: `pip install './client/python[export]'`.
"""
CLASSES = (braid.Client, braid.Trainer, braid.Stream, braid.Jobs, braid.Job, braid.Datasets)


def paragraphs(lines: list[str]) -> list[str]:
    """Returns a docstring as Markdown: `name: text` lines as a list, indented code as a block."""
    blocks: list[tuple[str, list[str]]] = []
    for line in lines:
        item = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        if not line.strip():
            blocks.append(("gap", []))
        elif line.startswith("    ") and blocks and blocks[-1][0] in ("gap", "code"):
            if blocks[-1][0] == "gap":
                blocks.append(("code", []))
            blocks[-1][1].append(line[4:])
        elif item:
            names = ", ".join(f"`{name}`" for name in item[1].split(", "))
            blocks.append(("item", [f"{names}: {item[2]}"]))
        elif line.startswith("    "):
            blocks[-1][1].append(line)
        elif blocks and blocks[-1][0] == "text":
            blocks[-1][1].append(line)
        else:
            blocks.append(("text", [line]))
    made, before = [], ""
    for kind, content in blocks:
        if kind == "item":
            if before != "item":
                made.append("")
            made.append(wrapped(" ".join(content), "  ", "- "))
        elif kind == "code":
            made += ["", "```", *content, "```"]
        elif kind == "text":
            made += ["", wrapped(" ".join(content))]
        before = kind if kind != "gap" else before
    return made


def documented(thing: object) -> list[str]:
    return paragraphs((inspect.getdoc(thing) or "").splitlines())


def signature(name: str, function: object) -> list[str]:
    parameters = list(inspect.signature(function).parameters.values())
    parameters = [each for each in parameters if each.name != "self"]
    result = inspect.signature(function).return_annotation
    suffix = "" if result in (inspect.Signature.empty, "None") else f" -> {result}"
    name = f"async {name}" if inspect.iscoroutinefunction(function) else name
    words, keywords = [], False
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not keywords:
            words.append("*")
            keywords = True
        keywords = keywords or each.kind is each.VAR_POSITIONAL
        default = "" if each.default is each.empty else f" = {each.default!r}"
        annotation = "" if each.annotation is each.empty else f": {each.annotation}"
        words.append(f"{stars.get(each.kind, '')}{each.name}{annotation}{default}")
    line = f"{name}({', '.join(words)}){suffix}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){suffix}"
    return ["", "```", line, "```"]


def section(title: str, name: str, function: object) -> list[str]:
    return ["", f"{title} {name}", *signature(name, function), *documented(function)]


def members(cls: type) -> list[str]:
    made = []
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            made += ["", f"### {cls.__name__}.{name}", *documented(member)]
        elif inspect.isfunction(member):
            made += section("###", f"{cls.__name__}.{name}", member)
    return made


def page() -> str:
    made = [INTRODUCTION.rstrip()]
    for name in ("connect", "export", "fit"):
        made += section("##", name, getattr(braid, name))
    for cls in CLASSES:
        made += ["", f"## {cls.__name__}", *documented(cls), *members(cls)]
    made += ["", "## Results", "", "Immutable values that calls return."]
    for cls in filter(dataclasses.is_dataclass, (getattr(braid, name) for name in braid.__all__)):
        names = ", ".join(f"`{each.name}`" for each in dataclasses.fields(cls))
        made += ["", f"### {cls.__name__}", "", wrapped(f"Fields: {names}."), *documented(cls)]
    made += ["", "## Errors", *documented(braid.BraidError), ""]
    codes = ", ".join(f"`{each.__name__}`" for each in braid.BraidError.__subclasses__())
    made.append(wrapped(f"Subclasses, one per gRPC status code: {codes}."))
    for cls in (braid.JobError, braid.ExportError):
        made += ["", f"### {cls.__name__}", *documented(cls)]
    return "\n".join(made) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
