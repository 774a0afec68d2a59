"""Command `braid check`: runs or adds self-tests of packages."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from braid._export import ExportError

_DESCRIPTION = """\
Checks that a package computes the same with the installed PyTorch as with the one that made it.

A self-test in model.pt2 holds inputs and the expected outputs, gradients and buffers. A server runs
it when it loads a package that another version of PyTorch made. braid.export writes one into every
pair. This command runs the self-test, or adds one if there is none. Add it with the version of
PyTorch that made the package, because the expected results are those of the installed version."""

_EPILOG = """\
examples:
  braid check models/net                 all versions of a model
  braid check models/net/1               one version
  braid check models/net/1/model.pt2     one package

exit status: 0 if all self-tests passed or were added, 1 if not, 2 for a wrong command line."""

_FILES = ("model.pt2", "model.pt")


def add_to(commands: Any) -> None:
    """Adds the command to the result of `ArgumentParser.add_subparsers`."""
    parser = commands.add_parser(
        "check",
        help="run the self-test of a package, or add one",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="a model's folder, the folder of one of its versions, or a package (model.pt2)",
    )


def _run(options: argparse.Namespace) -> int:
    packages = list(_packages(options.path))
    if not packages:
        options.parser.error(
            f"{options.path}: no package (expected a model's folder, a version's folder, or a file)"
        )
    try:
        from braid.exporter.model.run_context import quiet_torch
    except ImportError as error:
        raise ExportError(f"{error}: pip install 'braid-client[export]'") from None
    status = 0
    for package in packages:
        try:
            with quiet_torch():
                print(f"{package}: {_check(package)}")
        except ExportError as error:
            print(f"{options.parser.prog}: {error}", file=sys.stderr)
            status = 1
    return status


def _packages(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        versions = [each for each in path.iterdir() if each.is_dir() and each.name.isdecimal()]
        for folder in (path, *sorted(versions, key=lambda each: int(each.name))):
            yield from (folder / name for name in _FILES if (folder / name).is_file())


def _check(path: Path) -> str:
    """Checks one package and returns the report. Raises ExportError if the self-test fails."""
    import torch

    from braid.exporter.checks import self_test
    from braid.exporter.formats.archive import Archive, Kind

    archive = Archive(path)
    if archive.kind == Kind.AOTI:
        return "AOTInductor package: no self-test (it runs only on the PyTorch that compiled it)"
    if archive.kind == Kind.TORCHSCRIPT:
        return "TorchScript module: no self-test (every version of PyTorch reads TorchScript)"
    made, here = archive.torch_version, torch.__version__.partition("+")[0]
    found = f"{archive.kind.value}, made with PyTorch {made}"
    if not archive.has_self_test:
        self_test.add(path)
        computed = f" (expected results of PyTorch {here}, not of {made})" if made != here else ""
        return f"{found}: self-test added{computed}"
    differences = self_test.run(path)
    if differences:
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        than = "expected" if made == here else made
        raise ExportError(
            f"{path}: {found}: self-test failed: PyTorch {here} computes other results than "
            f"{than}: {differences[0]}{more}: export the model again with PyTorch {here}"
        )
    return f"{found}: self-test passed with PyTorch {here}"
