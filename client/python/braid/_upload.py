"""Files of a version, as the requests of an upload."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from braid._protocol import MODELS

_MODELS = ("model.pt", "model.pt2")
_WEIGHTS = "model.safetensors"
_PIECE_BYTES = 1 << 20


def files(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the model file at `path`, or in that folder, and the file of its weights."""
    folder = Path(path)
    models = [folder] if folder.is_file() else [folder / name for name in _MODELS]
    found = [each for each in models if each.is_file() and each.name in _MODELS]
    if len(found) != 1:
        raise ValueError(
            f"path: '{path}' has {'several models' if found else 'no model'} (expected model.pt or "
            f"model.pt2, or the folder of a version with one of them)"
        )
    weights = found[0].with_name(_WEIGHTS)
    return [*found, *([weights] if found[0].suffix == ".pt2" and weights.is_file() else [])]


def requests(model: str, paths: Sequence[Path]) -> Iterator[bytes]:
    """Yields the serialized requests, each with a piece of a file."""
    request = MODELS["UploadVersion"].request
    for path in paths:
        with path.open("rb") as file:
            data = file.read(_PIECE_BYTES)
            while True:
                following = file.read(_PIECE_BYTES)
                complete = not following and path == paths[-1]
                piece = request(model=model, file=path.name, data=data, complete=complete)
                yield piece.SerializeToString()
                if not following:
                    break
                data = following
