#!/usr/bin/env python3
"""Prints the copyright notices of the Debian packages and Python wheels that files come from, and of
the crates of the tokenizers.

usage: third_party_notices.py FILE...

Needs Cargo on the PATH.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from image_components import crates, owners

HEADER = """\
Third-party software in this package

Each notice is the whole one of its source package, so it may also cover tools, tests and packaging
that are not in this package. Where a notice refers to /usr/share/common-licenses/Apache-2.0, the
text is that of the file LICENSE.
"""
RULE = "=" * 80
RUST = "Rust standard library"


def debian_package(file: Path) -> str | None:
    """Returns the name of the installed package that owns the file, None if there is none."""
    # With merged /usr, packages list some libraries without it.
    names = [str(file), str(file).removeprefix("/usr")]
    found = subprocess.run(
        ["dpkg-query", "--search", *names], capture_output=True, text=True, check=False
    ).stdout
    return found.partition(":")[0] or None


def debian_notice(package: str) -> tuple[str, str]:
    version = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Version}", package],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return f"{package} {version}", Path(f"/usr/share/doc/{package}/copyright").read_text()


def wheel_notice(distribution: metadata.Distribution) -> tuple[str, str]:
    licenses = distribution.metadata.get_all("License-File") or []
    texts = [distribution.read_text(f"licenses/{name}") for name in licenses if "/" not in name]
    title = f"{distribution.metadata['Name']} {distribution.version}"
    return title, "\n".join(text for text in texts if text)


def crate_notice(crate: dict[str, Any]) -> tuple[str, str]:
    folder = Path(crate["manifest_path"]).parent
    files = sorted(
        file for name in ("LICENSE", "COPYING", "NOTICE") for file in folder.rglob(f"{name}*")
    )
    license_ = f"License: {crate['license']}\nAuthors: {', '.join(crate['authors'])}"
    texts = [license_, *(file.read_text() for file in files)]
    return f"{crate['name']} {crate['version']}", "\n\n".join(texts)


def notices(files: list[Path]) -> list[tuple[str, str]]:
    """Returns (name and version, text) for each owner of the files and each crate, sorted by name.

    Raises LookupError for a file without an owner, or an owner without a notice.
    """
    found = {}
    for file in files:
        package = debian_package(file)
        distributions = [] if package else owners({file})
        entries = [debian_notice(package)] if package else map(wheel_notice, distributions)
        texts = dict(entries)
        if not all(texts.values()) or not texts:
            raise LookupError(f"{file}: no notice found (expected a Debian package or a wheel)")
        found |= texts
    found |= map(crate_notice, crates())
    found |= {RUST: "License: MIT OR Apache-2.0\nAuthors: The Rust Project Developers"}
    return sorted(found.items())


def main() -> None:
    files = sorted({Path(name).resolve() for name in sys.argv[1:]})
    print(HEADER)
    try:
        for title, text in notices(files):
            print(RULE, title, RULE, text.strip(), "", sep="\n")
    except LookupError as error:
        sys.exit(f"error: {error.args[0]}")


if __name__ == "__main__":
    main()
