"""Edits of packages that imitate another version of PyTorch or a damaged file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SELF_TEST = "extra/self_test.json"


def edit(package: Path, record: str, change: Callable[[str], str | None]) -> None:
    """Replaces the text of a record by the result of `change`; removes the record for None."""
    with zipfile.ZipFile(package) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    (name,) = (each for each in contents if each.partition("/")[2] == record)
    text = change(contents.pop(name).decode())
    if text is not None:
        contents[name] = text.encode()
    with zipfile.ZipFile(package, "w") as file:
        for each, content in contents.items():
            file.writestr(each, content)


def edit_json(package: Path, record: str, change: Callable[[Any], None]) -> None:
    def edited(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    edit(package, record, edited)


def set_argument(package: Path, graph: str, operator: str, argument: str, value: Any) -> None:
    """Changes an argument of the only call of `operator` in a graph."""

    def change(program: dict) -> None:
        nodes = program["graph_module"]["graph"]["nodes"]
        (node,) = (each for each in nodes if each["target"] == f"torch.ops.aten.{operator}")
        (found,) = (each for each in node["inputs"] if each["name"] == argument)
        found["arg"] = value

    edit_json(package, f"models/{graph}.json", change)


def remove_self_test(package: Path) -> None:
    edit(package, SELF_TEST, lambda text: None)
