"""Command `braid export`: runs `braid.export`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from braid._export import ExportError, export

if TYPE_CHECKING:
    import torch

_DESCRIPTION = """\
Exports a PyTorch model as the next version of a model in a server's repository. Compares the
package with the model, including gradients, before it publishes the version."""

_EXAMPLES = """\
inputs:
  x=FP32:784            rows of 784 random numbers
  image=FP32:3x224x224  rows of 3x224x224
  label=INT64           rows of one number
  ids=INT64:128@0..999  rows of 128 integers from 0 to 999 (without a range: 0 and 1)
  x=rows.npy            an array of rows from numpy.save

examples:
  braid export mymodels:make_net models/net --input x=FP32:784
  braid export torchvision.models:resnet18 models/resnet --set num_classes=10 \\
      --input x=FP32:3x224x224 --weights resnet.pt
  braid export mymodels:Net models/net --input x=FP32:1x28x28 --stages features,classifier

exit status: 0 if the model was exported, 1 if not, 2 for a wrong command line."""


class UsageError(Exception):
    """The command line is wrong."""


def add_to(commands: Any) -> None:
    """Adds the command to the result of `ArgumentParser.add_subparsers`."""
    parser = commands.add_parser(
        "export",
        help="export a PyTorch model for the server",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, parser=parser)
    parser.add_argument(
        "model",
        metavar="MODULE:CALLABLE",
        help="class or function that creates the model, or the model itself, in an installed "
        "Python module or one in the current directory",
    )
    parser.add_argument("path", metavar="PATH", help="folder of the model in the repository")
    parser.add_argument(
        "--input",
        metavar="NAME=DTYPE[:DIMS][@LOW..HIGH]",
        action="append",
        required=True,
        help="input: name of a forward() argument, dtype, shape of one row without the batch, and "
        "range of integers; or NAME=FILE.npy; repeat for each input",
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="set an argument of CALLABLE, as JSON or text; may be repeated",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="load a state dict from a file of torch.save",
    )
    parser.add_argument(
        "--device", default="cpu", help="export on this device, cpu or cuda; default: cpu"
    )
    parser.add_argument(
        "--format",
        choices=("auto", "pair", "torchscript", "aot"),
        default="auto",
        help="choose the format; auto: a pair, or TorchScript if a pair is not possible; "
        "default: auto",
    )
    parser.add_argument(
        "--stages",
        metavar="PATH,PATH...",
        action="append",
        default=[],
        help="split the model into submodules that run in sequence, for pipelines; may be repeated",
    )
    parser.add_argument(
        "--precision",
        choices=("bfloat16", "float16", "none"),
        action="append",
        help="add a mixed precision to the model's own; may be repeated; "
        "default: bfloat16 for models in float32, and float16 on a GPU",
    )
    parser.add_argument(
        "--rows", type=int, default=4, help="set the number of rows of random inputs; default: 4"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed random inputs and weights; default: 0"
    )


def _run(options: argparse.Namespace) -> int:
    try:
        import torch
    except ImportError as error:
        raise ExportError(f"{error}: pip install 'braid-client[export]'") from None
    if options.rows < 1:
        raise UsageError(f"--rows: {options.rows} (expected 1 or more)")
    if not 0 <= options.seed < 1 << 63:
        raise UsageError(f"--seed: {options.seed} (expected 0 or more, and less than 2^63)")
    torch.manual_seed(options.seed)
    inputs = dict(_input(spec, options.rows) for spec in options.input)
    if len(inputs) < len(options.input):
        raise UsageError("--input: duplicate name (expected each input once)")
    device = _device(options.device)
    module = _model(options.model, dict(_setting(each) for each in options.set)).to(device)
    if options.weights is not None:
        _load(module, options.weights)
    precisions = options.precision and [each for each in options.precision if each != "none"]
    try:
        result = export(
            module,
            {name: tensor.to(device) for name, tensor in inputs.items()},
            options.path,
            options.format,
            stages=[chain.split(",") for chain in options.stages],
            precisions=precisions,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    print(f"{result.path}: {result.format}")
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device: '{name}' (expected cpu, cuda, or one GPU such as cuda:1)")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ExportError(f"--device: '{name}', but this machine has no GPU")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ExportError(
            f"--device: '{name}', but this machine has {torch.cuda.device_count()} GPUs"
        )
    return device


def _model(spec: str, settings: dict[str, Any]) -> torch.nn.Module:
    import torch

    from braid.exporter import export_errors

    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute):
        raise UsageError(f"'{spec}' (expected MODULE:CALLABLE, such as mymodels:make_net)")
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
    """Returns the line that raised the error, unless it is in this file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if frame.filename == __file__ or "importlib" in frame.filename:
        return ""
    return f"\n  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"--set: '{text}' (expected NAME=VALUE)")
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
    name, equals, value = spec.partition("=")
    if not (name and equals and value):
        raise UsageError(
            f"--input: '{spec}' (expected NAME=DTYPE[:DIMS][@LOW..HIGH] or NAME=FILE.npy)"
        )
    if value.endswith(".npy"):
        return name, _array(value)
    kind, at, limits = value.partition("@")
    dtype, colon, dims = kind.partition(":")
    try:
        shape = [int(each) for each in dims.split("x")] if colon else []
        low, high = (int(each) for each in limits.split("..")) if at else (0, 1)
    except ValueError:
        raise UsageError(
            f"--input: '{spec}' (expected dims such as 3x224x224, and a range such as @0..999)"
        ) from None
    if any(size < 1 for size in shape) or low > high:
        raise UsageError(
            f"--input: '{spec}' (expected dims of 1 or more, and a range that is not empty)"
        )
    return name, _random(spec, dtype.upper(), [rows, *shape], low, high)


def _random(spec: str, dtype: str, shape: list[int], low: int, high: int) -> torch.Tensor:
    import torch

    from braid.exporter import export_errors
    from braid.exporter.model.signature import DATATYPES

    by_name = {name: each for each, name in DATATYPES.items()}
    if dtype not in by_name:
        raise UsageError(
            f"--input: unknown dtype in '{spec}' (expected one of {', '.join(by_name)})"
        )
    kind = by_name[dtype]
    if not kind.is_floating_point:
        least, most = _integers(kind)
        if low < least or high > most:
            raise UsageError(f"--input: '{spec}' (expected a range within {least}..{most})")
    try:
        if kind.is_floating_point:
            return torch.randn(shape).to(kind)
        return torch.randint(low, high + 1, shape).to(kind)
    except (RuntimeError, TypeError, ValueError) as error:
        message = export_errors.first_line(error)
        raise UsageError(f"--input: '{spec}': cannot create {shape[0]} rows: {message}") from error


def _integers(dtype: torch.dtype) -> tuple[int, int]:
    """Returns the smallest and largest integer that can be drawn."""
    import torch

    if dtype == torch.bool:
        return 0, 1
    limits = torch.iinfo(dtype)
    return limits.min, min(limits.max, (1 << 63) - 2)  # torch.randint's exclusive end is int64.


def _array(path: str) -> torch.Tensor:
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.load(path))
    except (OSError, ValueError, TypeError) as error:
        raise ExportError(f"{path}: cannot be read: {error}") from error
