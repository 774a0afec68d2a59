#!/usr/bin/env python3
"""Exports, serves and trains public models, and compares each with PyTorch.

Models of torchvision, transformers, timm, torchaudio and PyTorch's tutorials, small, with random
weights, in float64. Each is exported, asked for outputs of several shapes, and trained for 20 steps
on 1 and 3 CPU replicas. Outputs, losses, parameters and buffers must be PyTorch's, to 1e-9 unless
the model computes in a lower precision.

Results are appended to a file, one JSON object per line. Models that have a result there are
skipped, unless --models names them. --table writes docs/reference/models.md from the file.

timm and torchaudio are not among Braid's requirements. To include their models:

    .venv/bin/pip install --no-deps --target DIR timm torchaudio
    rm -rf DIR/torchaudio/lib     # compiled for one version of PyTorch; its models do not need it
    PYTHONPATH=DIR .venv/bin/python scripts/long/train_foreign_pairs.py

BRAID_SERVER_BINARY names the server, if it is not build/release/bin/braid-server. Exits with 1 if
any result differs or an unexpected error occurs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "client/python")]
# gRPC logs a line about fork for every process that is started.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

import torch
from e2e.support.public_models import ENTRIES, runner, table
from e2e.support.public_models.runner import Result

TABLE = ROOT / "docs/reference/models.md"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=ENTRIES, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list the models and exit")
    parser.add_argument("--table", action="store_true", help=f"write {TABLE.name} and exit")
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "build/public_models.jsonl",
        help="file of results; default: %(default)s",
    )
    return parser.parse_args()


def read_results(path: Path) -> dict[str, Result]:
    """Returns the last result of each model."""
    if not path.exists():
        return {}
    results = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return {result.name: result for result in results if result.name in ENTRIES}


def report(result: Result) -> None:
    differences = [result.inference, *result.training.values()]
    numbers = " ".join(f"{each:.1e}" for each in differences if each is not None)
    print(f"{result.seconds:6.0f} s  {result.result:9}  {result.name} {result.format} {numbers}")
    if result.reason:
        print(textwrap.indent(result.reason, 12 * " "))
    sys.stdout.flush()


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        print(*ENTRIES, sep="\n")
        return 0
    results = read_results(arguments.results)
    if arguments.table:
        TABLE.write_text(table.to_markdown(results, ENTRIES))
        return 0
    torch.set_num_threads(1)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.models or [each for each in ENTRIES if each not in results]:
        with tempfile.TemporaryDirectory(prefix="braid-foreign-") as directory:
            result = runner.run(ENTRIES[name], Path(directory))
        results[name] = result
        with arguments.results.open("a") as file:
            file.write(json.dumps(result.to_json()) + "\n")
        report(result)
    good = {runner.EQUAL, runner.REFUSED}
    return 0 if all(result.result in good for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
