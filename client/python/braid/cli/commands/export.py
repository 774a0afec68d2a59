"""`braid export`: exports a PyTorch model into a repository."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from braid._export import ExportError, export
from braid.cli import errors, options
from braid.cli import settings as connection
from braid.cli.commands.check import needs_torch
from braid.cli.options import POSITIVE, Flags, Number, Word, option, pass_flags
from braid.cli.output import print_json, print_line

if TYPE_CHECKING:
    import braid
    import torch

HELP = """\
Export a PyTorch model as the next version of a model in the repository of a server.
With --server, that server assigns the number of the version.

MODULE:CALLABLE is the class or function that creates the model, or the model itself, in an
installed Python module or one in the current directory. PATH is the folder of the model in the
repository. Compares the package with the model, including gradients, before it publishes the
version.
"""
EPILOG = """\
\b
Inputs:
  x=FP32:784            rows of 784 random numbers
  image=FP32:3x224x224  rows of 3x224x224
  label=INT64           rows of one number
  ids=INT64:128@0..999  rows of 128 integers from 0 to 999 (without a range: 0 and 1)
  x=rows.npy            an array of rows from numpy.save

\b
Examples:
  braid export mymodels:make_net models/net --input x=FP32:784
  braid export torchvision.models:resnet18 models/resnet --set num_classes=10 \\
      --input x=FP32:3x224x224 --weights resnet.pt
  braid export mymodels:Net models/net --input x=FP32:1x28x28 --stages features,classifier
  braid export mymodels:Text models/text --input ids=INT64:20@0..999 --dynamic ids:1=seq:1..512

Exit codes: 0 written; 1 not written; 2 wrong usage.
"""
_INPUT = "NAME=DTYPE[:DIMS][@LOW..HIGH]"
_DYNAMIC = "INPUT:DIM=NAME[:MIN..MAX]"
_BATCH_DIM = "TENSOR=DIM"


@options.command(
    "export", help=HELP, short_help="Export a PyTorch model for the server", epilog=EPILOG
)
@click.argument("model", metavar="MODULE:CALLABLE")
@click.argument("path", type=click.Path())
@option(
    "--input", "inputs", metavar=_INPUT, multiple=True, required=True,
    help="Input: name of a forward() argument, dtype, shape of one row without the batch, and "
    "range of integers; or NAME=FILE.npy; repeat for each input",
)
@option(
    "--dynamic", metavar=_DYNAMIC, multiple=True,
    help="Let a dim of an input vary in size; dim 0, or --batch-dim, is the batch; dims with the "
    "same NAME have the same size; may be repeated",
)
@option(
    "--batch-dim", "batch_dims", metavar=_BATCH_DIM, multiple=True,
    help="Dim of the batch in an input or output, if it is not dim 0; --input still describes "
    "rows; may be repeated",
)
@option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True,
    help="Set an argument of CALLABLE, as JSON or text; may be repeated",
)
@option("--weights", metavar="FILE", help="Load a state dict from a file of torch.save")
@option(
    "--device", default="cpu", show_default=True, metavar="DEVICE",
    help="Export on this device, cpu or cuda",
)
@option(
    "--format", type=Word(("auto", "pair", "torchscript", "aot")), default="auto",
    show_default=True,
    help="Choose the format; auto: a pair, or TorchScript if a pair is not possible",
)
@option(
    "--stages", metavar="PATH,PATH...", multiple=True,
    help="Split the model into submodules that run in sequence, for pipelines; may be repeated",
)
@option(
    "--precision", "precisions", type=Word(("bfloat16", "float16", "none")), multiple=True,
    help="Also export training in this mixed precision; repeatable [default: bfloat16 for models "
    "in float32, and float16 on a GPU]",
)
@option(
    "--eval-modules", metavar="PATTERN", multiple=True,
    help="Also export training with the submodules whose names match the pattern in evaluation "
    "mode, for braid train --eval-modules; may be repeated",
)
@option(
    "--output-name", "output_names", multiple=True, metavar="NAME",
    help="Name an output; repeat for each output, in order [default: the names that the module "
    "gives them, else output__0 and so on]",
)
@option(
    "--check", type=Word(("sample", "full")), default="sample", show_default=True,
    help="Compare an expensive model with the package for two batch sizes, or for all",
)
@option(
    "--rows", type=POSITIVE, default=4, show_default=True, metavar="N",
    help="Number of rows of random inputs",
)
@option(
    "--seed", type=Number(int, 0, (1 << 63) - 1), default=0, show_default=True, metavar="N",
    help="Seed random inputs and weights",
)
@pass_flags
def command(
    flags: Flags,
    model: str,
    path: str,
    inputs: Sequence[str],
    dynamic: Sequence[str],
    batch_dims: Sequence[str],
    settings: Sequence[str],
    weights: str | None,
    device: str,
    format: Any,
    stages: Sequence[str],
    precisions: Sequence[str],
    eval_modules: Sequence[str],
    output_names: Sequence[str],
    check: Any,
    rows: int,
    seed: int,
) -> None:
    with needs_torch():
        import torch
    torch.manual_seed(seed)
    place = _device(device)
    try:
        tensors = dict(_input(spec, rows) for spec in inputs)
        batch_dim = dict(_batch_dim(spec) for spec in batch_dims)
        tensors = {
            name: tensor.movedim(0, min(batch_dim.get(name, 0), tensor.dim() - 1))
            for name, tensor in tensors.items()
        }
        if len(tensors) < len(inputs):
            raise errors.usage("--input", "duplicate name", "expected each input once")
        module = _model(model, dict(_setting(each) for each in settings)).to(place)
        if weights is not None:
            _load(module, weights)
        with _server(flags) as server:
            result = export(
                module,
                {name: tensor.to(place) for name, tensor in tensors.items()},
                path,
                format,
                stages=[chain.split(",") for chain in stages],
                precisions=[each for each in precisions if each != "none"] if precisions else None,
                eval_modules=eval_modules,
                output_names=output_names or None,
                dynamic=_dynamic(dynamic),
                check=check,
                batch_dim=batch_dim,
                server=server,
            )
    except ExportError as error:
        raise errors.Failure(str(error)) from error
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    if flags.json:
        print_json({
            "path": str(result.path),
            "format": result.format,
            "version": result.version,
            "reason": result.reason,
            "notes": list(result.notes),
        })  # fmt: skip
        return
    print_line(f"{result.path}: {result.format}")
    for note in result.notes:
        click.echo(f"note: {note}", err=True)


def _server(flags: Flags) -> contextlib.AbstractContextManager[braid.Client | None]:
    """Connects to the server if the command line names one."""
    return contextlib.nullcontext() if flags.server is None else connection.connect(flags)


def _device(name: str) -> torch.device:
    import torch

    expected = "expected cpu, cuda, or one GPU such as cuda:1"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise errors.usage("--device", f"invalid value {name!r}", expected) from None
    if device.type not in ("cpu", "cuda"):
        raise errors.usage("--device", f"invalid value {name!r}", expected)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise errors.Failure(f"--device: {name!r}, but this machine has no GPU")
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise errors.Failure(f"--device: {name!r}, but this machine has {count} GPUs")
    return device


def _model(spec: str, settings: dict[str, Any]) -> torch.nn.Module:
    import torch

    from braid.exporter import export_errors

    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute):
        raise errors.usage(
            "MODULE:CALLABLE", f"invalid value {spec!r}", "expected for example mymodels:make_net"
        )
    sys.path.insert(0, os.getcwd())
    try:
        made = importlib.import_module(name)
        for part in attribute.split("."):
            made = getattr(made, part)
        if not isinstance(made, torch.nn.Module):
            made = made(**settings)
    except Exception as error:
        raise ExportError(f"{spec}: {export_errors.describe(error)}{_place(error)}") from error
    if not isinstance(made, torch.nn.Module):
        raise ExportError(
            f"{spec}: {export_errors.type_with_article(made)} (expected a torch.nn.Module)"
        )
    return made


def _place(error: Exception) -> str:
    """Returns the line that raised an error, unless it is in this file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if frame.filename == __file__ or "importlib" in frame.filename:
        return ""
    return f" ({frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line})"


def _dynamic(specs: Sequence[str]) -> dict[str, dict[int, Any]]:
    """Returns the variable dims by input and dim, for example {"ids": {1: ("seq", 1, 512)}}."""
    dims: dict[str, dict[int, Any]] = {}
    for spec in specs:
        matched = re.fullmatch(r"(.+):(\d+)=(\w+)(?::(\d+)\.\.(\d+))?", spec)
        if matched is None:
            raise errors.usage("--dynamic", f"invalid value {spec!r}", f"expected {_DYNAMIC}")
        name, dim, symbol, least, most = matched.groups()
        size = symbol if least is None else (symbol, int(least), int(most))
        if dims.setdefault(name, {}).setdefault(int(dim), size) is not size:
            raise errors.usage("--dynamic", f"invalid value {spec!r}", "expected each dim once")
    return dims


def _batch_dim(spec: str) -> tuple[str, int]:
    name, _, dim = spec.rpartition("=")
    if not name or not dim.isdecimal():
        raise errors.usage("--batch-dim", f"invalid value {spec!r}", f"expected {_BATCH_DIM}")
    return name, int(dim)


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise errors.usage("--set", f"invalid value {text!r}", "expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _load(module: torch.nn.Module, path: str) -> None:
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:
        raise ExportError(f"{path}: cannot be loaded: {error}") from error


def _input(spec: str, rows: int) -> tuple[str, torch.Tensor]:
    name, equals, kind_or_file = spec.partition("=")
    if not (name and equals and kind_or_file):
        raise errors.usage(
            "--input", f"invalid value {spec!r}", f"expected {_INPUT} or NAME=FILE.npy"
        )
    if kind_or_file.endswith(".npy"):
        return name, _array(kind_or_file)
    kind, at, limits = kind_or_file.partition("@")
    dtype, colon, dims = kind.partition(":")
    try:
        shape = [int(each) for each in dims.split("x")] if colon else []
        low, high = (int(each) for each in limits.split("..")) if at else (0, 1)
    except ValueError:
        raise errors.usage(
            "--input", f"invalid value {spec!r}",
            "expected dims such as 3x224x224, and a range such as @0..999",
        ) from None  # fmt: skip
    if any(size < 1 for size in shape) or low > high:
        raise errors.usage(
            "--input", f"invalid value {spec!r}",
            "expected dims of 1 or more, and a range that is not empty",
        )  # fmt: skip
    return name, _random(spec, dtype.upper(), [rows, *shape], low, high)


def _random(spec: str, dtype: str, shape: list[int], low: int, high: int) -> torch.Tensor:
    import torch

    from braid.exporter import export_errors
    from braid.exporter.model.signature import DATATYPES

    by_name = {name: each for each, name in DATATYPES.items()}
    if dtype not in by_name:
        known = f"expected one of: {', '.join(by_name)}"
        raise errors.usage("--input", f"{spec!r} has an unknown dtype", known)
    kind = by_name[dtype]
    if not kind.is_floating_point:
        least, most = _integers(kind)
        if low < least or high > most:
            expected = f"expected a range within {least}..{most}"
            raise errors.usage("--input", f"{spec!r} is out of range", expected)
    try:
        if kind.is_floating_point:
            return torch.randn(shape).to(kind)
        return torch.randint(low, high + 1, shape).to(kind)
    except (RuntimeError, TypeError, ValueError) as error:
        problem = f"cannot create {shape[0]} rows of {spec!r}"
        raise errors.usage("--input", problem, export_errors.first_line(error)) from error


def _integers(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the limits of random integers."""
    import torch

    if dtype == torch.bool:
        return 0, 1
    limits = torch.iinfo(dtype)
    return limits.min, min(limits.max, (1 << 63) - 2)  # The limit of randint has 64 bits.


def _array(path: str) -> torch.Tensor:
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.load(path))
    except (OSError, ValueError, TypeError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from error
