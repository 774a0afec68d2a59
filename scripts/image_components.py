#!/usr/bin/env python3
"""Prints components of a CycloneDX SBOM, one per line: the wheels that contain the files, and the
crates of the tokenizers.

usage: image_components.py FILE...

Needs Cargo on the PATH.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

TOKENIZERS = Path(__file__).parents[1] / "server" / "decode" / "tokenizers" / "Cargo.toml"


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


def crates() -> list[dict[str, Any]]:
    """Returns Cargo's description of each crate that the tokenizers are built from, by name."""
    command = ["cargo", "metadata", "--format-version=1", "--manifest-path", TOKENIZERS]
    command.append("--filter-platform=x86_64-unknown-linux-gnu")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    packages = json.loads(done.stdout)["packages"]
    return sorted((crate for crate in packages if crate["source"]), key=lambda crate: crate["name"])


def crate_component(crate: dict[str, Any]) -> dict[str, str]:
    name, version = crate["name"], crate["version"]
    purl = f"pkg:cargo/{name}@{version}"
    return {"type": "library", "name": name, "version": version, "purl": purl}


def main() -> None:
    files = {Path(name).resolve() for name in sys.argv[1:]}
    for distribution in owners(files):
        print(json.dumps(component(distribution)))
    for crate in crates():
        print(json.dumps(crate_component(crate)))


if __name__ == "__main__":
    main()
