#!/usr/bin/env python3
"""Pins the crates of server/decode/tokenizers: writes the versions of Cargo.lock to Cargo.toml.

Cargo.lock is not committed. To update the crates, change the version of `tokenizers` in Cargo.toml,
delete the pins below PINS and Cargo.lock, build, and run this script.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

CRATE = Path(__file__).parents[1] / "server" / "decode" / "tokenizers"
PINS = "[target.'cfg(any())'.dependencies]\n"


def pins(lock: str) -> list[str]:
    """Returns a dependency for each crate of a Cargo.lock that comes from a registry."""
    crates = [crate for crate in tomllib.loads(lock)["package"] if "source" in crate]
    versions = Counter(crate["name"] for crate in crates)
    lines = []
    for crate in crates:
        name, version = crate["name"], crate["version"].partition("+")[0]
        options = f'version = "={version}", default-features = false'
        if versions[name] > 1:
            key = f"{name}-{version.replace('.', '-')}"
            lines.append(f'{key} = {{ package = "{name}", {options} }}\n')
        else:
            lines.append(f"{name} = {{ {options} }}\n")
    return lines


def main() -> None:
    manifest = CRATE / "Cargo.toml"
    head, found, _ = manifest.read_text().partition(PINS)
    if not found:
        raise SystemExit(f"error: {manifest}: no section {PINS.strip()}")
    manifest.write_text(head + PINS + "".join(pins((CRATE / "Cargo.lock").read_text())))


if __name__ == "__main__":
    main()
