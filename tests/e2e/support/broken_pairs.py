"""Exported pairs with one defect each: copies of a valid pair, changed in one place."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import braid
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CONFIG = """
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 10 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 5 ] } ]
"""
GONE = object()
_PREFIX = "model/"
_MANIFEST = _PREFIX + "extra/train.json"

Entries = dict[str, bytes]
# Changes the folder of a version. The model's folder is its parent.
Change = Callable[[Path], None]


class Good(nn.Module):
    """A frozen layer, batch norm and a trainable layer: 10 → 5."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(10, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.frozen(x)).tanh())


@dataclass(frozen=True)
class Broken:
    """words: what the error must contain: the file, the field, the value and what is expected."""

    name: str
    words: tuple[str, ...]
    change: Change


def make_good() -> nn.Module:
    torch.manual_seed(0)
    return Good()


def export_good(directory: Path) -> None:
    braid.export(make_good(), (torch.zeros(2, 10),), directory, "pair", precisions=[])
    (directory / "config.pbtxt").write_text(CONFIG)


def write(repository: Path, good: Path, broken: list[Broken]) -> None:
    """Writes a model for each of `broken`, under its name."""
    for each in broken:
        shutil.copytree(good, repository / each.name)
        each.change(repository / each.name / "1")


# Changes of the archive.


def rewritten(change: Callable[[Entries], object], compression: int = zipfile.ZIP_STORED) -> Change:
    """Rewrites the archive. `change` modifies the dict of its files in place."""

    def apply(version: Path) -> None:
        path = version / "model.pt2"
        with zipfile.ZipFile(path) as old:
            entries = {name: old.read(name) for name in old.namelist()}
        change(entries)
        with zipfile.ZipFile(path, "w", compression) as new:
            for name, content in entries.items():
                new.writestr(name, content)

    return apply


def file_is(content: Callable[[bytes], bytes]) -> Change:
    """Replaces the archive's bytes."""

    def apply(version: Path) -> None:
        path = version / "model.pt2"
        path.write_bytes(content(path.read_bytes()))

    return apply


def a_folder(version: Path) -> None:
    (version / "model.pt2").unlink()
    (version / "model.pt2").mkdir()


def add(name: str, content: bytes) -> Callable[[Entries], object]:
    return lambda entries: entries.update({_PREFIX + name: content})


def drop(name: str) -> Callable[[Entries], object]:
    return lambda entries: entries.pop(_PREFIX + name)


def outside(entries: Entries) -> None:
    """Adds names that would be unpacked outside the archive's folder."""
    for name in list(entries):
        entries[name.replace("/", "/../../", 1)] = entries.pop(name)


# Changes of train.json or of a graph.


def _put(root: Any, path: str, value: Any) -> None:
    """path: "parts.0.path". value: the new value, GONE, or a function of the old value."""
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for parent in parents:
        root = root[parent]
    if value is GONE:
        del root[last]
    else:
        root[last] = value(root[last]) if callable(value) else value


def json_with(file: str, path: str, value: Any) -> Change:
    def change(entries: Entries) -> None:
        content = json.loads(entries[_PREFIX + file])
        _put(content, path, value)
        entries[_PREFIX + file] = json.dumps(content).encode()

    return rewritten(change)


def manifest(name: str, path: str, value: Any, *words: str) -> Broken:
    """A pair whose train.json has another value at `path`."""
    return Broken(name, ("model.pt2", *words), json_with("extra/train.json", path, value))


def graph(name: str, of: str, path: str, value: Any, *words: str) -> Broken:
    """A pair whose graph has another value at `path`."""
    change = json_with(f"models/{of}.json", path, value)
    return Broken(name, (f"model.pt2: graph '{of}'", *words), change)


# Changes of the weights.


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Change:
    def apply(version: Path) -> None:
        found = load_file(version / "model.safetensors")
        change(found)
        save_file(found, version / "model.safetensors")

    return apply


def weights_are(content: Callable[[bytes], bytes]) -> Change:
    def apply(version: Path) -> None:
        path = version / "model.safetensors"
        path.write_bytes(content(path.read_bytes()))

    return apply


def header_with(change: Callable[[dict[str, Any]], object]) -> Change:
    """Replaces the header and keeps the data."""

    def rewritten_header(old: bytes) -> bytes:
        length = int.from_bytes(old[:8], "little")
        header = json.loads(old[8 : 8 + length])
        change(header)
        new = json.dumps(header).encode()
        new += b" " * (-len(new) % 8)
        return len(new).to_bytes(8, "little") + new + old[8 + length :]

    return weights_are(rewritten_header)


# Changes of the configuration.


def config(name: str, old: str, new: str, *words: str) -> Broken:
    def apply(version: Path) -> None:
        assert old in CONFIG
        (version.parent / "config.pbtxt").write_text(CONFIG.replace(old, new))

    return Broken(name, words, apply)
