#!/usr/bin/env python3
"""Prints the wheels that contain the files as components of a CycloneDX SBOM, one per line.

usage: image_components.py FILE...
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path


def component(distribution: metadata.Distribution) -> dict[str, str]:
    name, version = distribution.metadata["Name"], distribution.version
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl}


def owners(files: set[Path]) -> list[metadata.Distribution]:
    """Returns the installed distributions that one of the files belongs to, by name."""
    names = {file.name for file in files}  # Resolving each of 100,000 paths would take minutes.
    found = [
        distribution
        for distribution in metadata.distributions()
        if any(
            file.name in names and Path(file.locate()).resolve() in files
            for file in distribution.files or ()
        )
    ]
    return sorted(found, key=lambda distribution: distribution.metadata["Name"])


def main() -> None:
    files = {Path(name).resolve() for name in sys.argv[1:]}
    for distribution in owners(files):
        print(json.dumps(component(distribution)))


if __name__ == "__main__":
    main()
