"""Reader of exported programs that is fast for large graphs.

PyTorch's reader evaluates the type hints of a class for each of its instances, and creates the
described tensor of each node from its symbolic sizes. Both repeat thousands of times.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._export.serde.serialize import GraphModuleDeserializer
from torch.export.pt2_archive._package import PT2ArchiveContents, load_pt2


def read(file: Path | typing.IO[bytes]) -> PT2ArchiveContents:
    """Returns the contents of an archive. Nodes of equal type share one described tensor."""
    hints: dict[type, dict[str, Any]] = {}
    get_type_hints = typing.get_type_hints

    def known_hints(cls: Any, *args: Any, **options: Any) -> dict[str, Any]:
        if cls not in hints:
            hints[cls] = get_type_hints(cls, *args, **options)
        return hints[cls]

    described: dict[tuple[int, str], torch.Tensor] = {}
    describe = GraphModuleDeserializer.deserialize_tensor_meta

    def shared_tensor(reader: GraphModuleDeserializer, meta: Any) -> torch.Tensor:
        key = id(reader.shape_env), repr(meta)
        if key not in described:
            described[key] = describe(reader, meta)
        return described[key]

    with (
        mock.patch.object(typing, "get_type_hints", known_hints),
        mock.patch.object(GraphModuleDeserializer, "deserialize_tensor_meta", shared_tensor),
    ):
        return load_pt2(str(file) if isinstance(file, Path) else file)
