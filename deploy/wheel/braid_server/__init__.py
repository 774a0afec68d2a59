"""Starts the braid-server program of this package on LibTorch of the installed torch package."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def main() -> None:
    """Replaces this process by braid-server, with the same arguments."""
    # torch without an installer's record, such as a checkout, fails here as a missing one does.
    try:
        installed = metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        installed = "none"
    required = _required_torch()
    if installed != required:
        sys.exit(
            f"error: torch: found version {installed} (expected {required}); "
            f"run: {sys.executable} -m pip install torch=={required}"
        )
    program = str(_PACKAGE / "bin/braid-server")
    os.execve(program, ["braid-server", *sys.argv[1:]], _environment())


def _required_torch() -> str:
    (requirement,) = metadata.requires("braid-server") or ()
    return requirement.removeprefix("torch==")


def _environment() -> dict[str, str]:
    """Names torch's libraries only if torch is in another folder, where the run path misses it."""
    (torch,) = importlib.util.find_spec("torch").submodule_search_locations
    if Path(torch).resolve() == _PACKAGE.parent / "torch":
        return dict(os.environ)
    # The libraries of CUDA are found relative to those of torch.
    paths = [f"{torch}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(paths)}
