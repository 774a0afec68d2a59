"""`braid check`: runs or adds the self-tests of packages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from braid._export import ExportError
from braid.cli import errors, options
from braid.cli.options import Flags, pass_flags
from braid.cli.output import print_json, print_line

HELP = """\
Check that a package computes the same with the installed PyTorch as with the one that made it.

PATH is the folder of a model, the folder of one of its versions, or a package (model.pt2).

A self-test in model.pt2 holds inputs and the expected outputs, gradients and buffers. A server runs
it when it loads a package that another version of PyTorch made. braid.export writes one into every
pair. This command runs the self-test, or adds one if there is none. Add it with the version of
PyTorch that made the package, because the expected results are those of the installed version.
"""
EPILOG = """\
\b
Examples:
  braid check models/net                 all versions of a model
  braid check models/net/1               one version
  braid check models/net/1/model.pt2     one package

Exit codes: 0 all self-tests passed or were added; 1 one failed; 2 wrong usage.
"""
_FILES = ("model.pt2", "model.pt")


@dataclass(frozen=True)
class _Report:
    """Result of one package. self_test: "passed", "added" or "none"."""

    self_test: str
    text: str


@options.command(
    "check", help=HELP, short_help="Run the self-test of a package, or add one", epilog=EPILOG
)
@click.argument("path", type=click.Path(path_type=Path))
@pass_flags
@click.pass_context
def command(ctx: click.Context, flags: Flags, path: Path) -> None:
    packages = list(_packages(path))
    if not packages:
        raise errors.usage(
            str(path), "no package", "expected the folder of a model or a version, or a file"
        )
    failed = False
    for package in packages:
        try:
            report = _check(package)
        except ExportError as error:
            failed = True
            if flags.json:
                print_json({"package": str(package), "self_test": "failed", "message": str(error)})
            else:
                errors.report(errors.Failure(str(error)))
            continue
        if flags.json:
            print_json(
                {"package": str(package), "self_test": report.self_test, "message": report.text}
            )
        else:
            print_line(f"{package}: {report.text}")
    ctx.exit(errors.FAILED if failed else 0)


def _packages(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        versions = [each for each in path.iterdir() if each.is_dir() and each.name.isdecimal()]
        for folder in (path, *sorted(versions, key=lambda each: int(each.name))):
            yield from (folder / name for name in _FILES if (folder / name).is_file())


def _check(path: Path) -> _Report:
    """Runs or adds the self-test. ExportError if it fails."""
    with needs_torch():
        import torch

        from braid.exporter.checks import self_test
        from braid.exporter.formats.archive import Archive, Kind
        from braid.exporter.model.run_context import quiet_torch

    archive = Archive(path)
    if archive.kind == Kind.AOTI:
        return _Report(
            "none",
            "AOTInductor package: no self-test (it runs only on the PyTorch that compiled it)",
        )
    if archive.kind == Kind.TORCHSCRIPT:
        return _Report(
            "none",
            "TorchScript module: no self-test (every version of PyTorch reads TorchScript)",
        )
    made, here = archive.torch_version, torch.__version__.partition("+")[0]
    found = f"{archive.kind.value}, made with PyTorch {made}"
    with quiet_torch():
        if not archive.has_self_test:
            self_test.add(path)
            computed = f" (expected results of PyTorch {here}, not of {made})"
            return _Report("added", f"{found}: self-test added{computed if made != here else ''}")
        differences = self_test.run(path)
    if differences:
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        than = "expected" if made == here else made
        raise ExportError(
            f"{path}: {found}: self-test failed: PyTorch {here} computes other results than "
            f"{than}: {differences[0]}{more}: export the model again with PyTorch {here}"
        )
    return _Report("passed", f"{found}: self-test passed with PyTorch {here}")


@contextlib.contextmanager
def needs_torch() -> Iterator[None]:
    """Turns the ImportError of a missing PyTorch into advice."""
    try:
        yield
    except ImportError as error:
        raise errors.Failure(f"torch: {error} (pip install 'braid-client[export]')") from None
