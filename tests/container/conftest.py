"""Fixture with the image BRAID_IMAGE of scripts/container.sh, mounted in a folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


class Image(NamedTuple):
    name: str
    root: Path
    # Configuration of the image: Entrypoint, User and so on.
    config: dict


def buildah(*arguments: str) -> str:
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    name = os.environ.get("BRAID_IMAGE")
    if name is None:
        raise RuntimeError("no BRAID_IMAGE to test: scripts/container.sh makes one")
    config = json.loads(buildah("inspect", "--type", "image", name))["OCIv1"]["config"]
    container = buildah("from", "--pull-never", name)
    try:
        yield Image(name, Path(buildah("mount", container)), config)
    finally:
        buildah("rm", container)
