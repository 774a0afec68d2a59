"""`braid evaluate`: loss and metrics of a trainer over .npy files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from braid.cli import files, options, settings
from braid.cli.options import POSITIVE, Flags, option, pass_flags
from braid.cli.output import print_json, table_text

if TYPE_CHECKING:
    from braid.results import EvaluationResult

EPILOG = """\
Changes nothing in the trainer.

\b
Example:
  braid evaluate fashion --input x=test_x.npy --target target=test_y.npy --metric accuracy
"""


@options.command(
    "evaluate", help="Measure the current weights of a trainer on .npy files.", epilog=EPILOG
)
@click.argument("trainer")
@option(
    "--input", "inputs", multiple=True, required=True, metavar=files.FILE,
    help="An input and its file; repeat for each input",
)  # fmt: skip
@option(
    "--target", "targets", multiple=True, metavar=files.FILE,
    help="A target and its file; repeat for each target",
)  # fmt: skip
@option(
    "--batch-size", type=POSITIVE, default=256, show_default=True, metavar="N",
    help="Rows to send at a time",
)  # fmt: skip
@option(
    "--metric", "metrics", multiple=True, metavar="NAME",
    help="Besides the loss: accuracy, top_k, confusion, mse, mae, binary_accuracy, iou or "
    "label_error_rate; may be repeated",
)  # fmt: skip
@option("--k", type=POSITIVE, default=5, show_default=True, metavar="N", help="For top_k")
@pass_flags
def command(
    flags: Flags,
    trainer: str,
    inputs: Sequence[str],
    targets: Sequence[str],
    batch_size: int,
    metrics: Sequence[str],
    k: int,
) -> None:
    dataset = files.Dataset(
        files.named_files("--input", inputs), files.named_files("--target", targets)
    )
    with settings.connect(flags) as client:
        batches = (
            dataset.slice(start, start + batch_size) for start in range(0, dataset.rows, batch_size)
        )
        handle = client.trainer(trainer)
        files.check_rows_first(client, handle.model)
        result = handle.evaluate(batches, metrics=metrics, k=k)
    if flags.json:
        print_json(as_json(result))
    else:
        sys.stdout.write(text(result))


def text(result: EvaluationResult) -> str:
    """Returns a line for each figure; the confusion matrix, if there is one, is below."""
    figures: dict[str, Any] = {} if result.loss is None else {"loss": f"{result.loss:g}"}
    figures.update((name, f"{value:g}") for name, value in result.metrics.items())
    figures.update(rows=result.rows, step=result.step)
    table = table_text([("metric", "value"), *((name, str(v)) for name, v in figures.items())])
    if result.confusion is None:
        return table
    headings = ["target", *(f"as {column}" for column in range(len(result.confusion)))]
    rows = [[str(target), *map(str, row)] for target, row in enumerate(result.confusion.tolist())]
    return f"{table}\n{table_text([headings, *rows])}"


def as_json(result: EvaluationResult) -> dict[str, Any]:
    return {
        **({} if result.loss is None else {"loss": result.loss}),
        "rows": result.rows,
        "step": result.step,
        "metrics": result.metrics,
        **({} if result.confusion is None else {"confusion": result.confusion.tolist()}),
    }
