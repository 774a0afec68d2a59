"""`braid data`: datasets on the server that jobs can read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from braid.cli import errors, options, settings
from braid.cli.options import Flags, Number, option, pass_flags
from braid.cli.output import (
    bytes_text,
    count_text,
    json_text,
    print_json,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from braid.data import Dataset

EPILOG = """\
Paths are on the server, relative to the first --data_root in which they exist, then to
--dataset_root, or s3://BUCKET/KEY. put prints the path of an uploaded dataset.

\b
Example:
  braid data put train.parquet train.parquet
  braid data preview train.parquet --rows 3
"""
_MAX_CELL = 40

command = options.Group(
    "data",
    help="Show the datasets on the server that jobs can read; upload and delete them.",
    short_help="Show, upload and delete datasets on the server",
    epilog=EPILOG,
)


@command.command(
    "list", help="List the datasets and folders in FOLDER [default: --data_root, --dataset_root]."
)
@click.argument("folder", default="")
@pass_flags
def list_datasets(flags: Flags, folder: str) -> None:
    with settings.connect(flags) as client:
        entries = client.data.list_datasets(folder)
    if flags.json:
        print_json({
            "entries": [
                {"name": each.name, "folder": each.is_folder, "bytes": each.bytes}
                for each in entries
            ],
        })  # fmt: skip
        return
    print_table([
        ("name", "size"),
        *(
            (f"{each.name}/", "") if each.is_folder else (each.name, bytes_text(each.bytes))
            for each in entries
        ),
    ])  # fmt: skip


@command.command(
    "show",
    help="Show the columns and the number of rows of a dataset. The rows of CSV are not counted.",
    short_help="Show the columns and the number of rows of a dataset",
)
@click.argument("path")
@pass_flags
def show(flags: Flags, path: str) -> None:
    with settings.connect(flags) as client:
        dataset = client.data.get(path)
    if flags.json:
        print_json(_as_json(dataset))
        return
    print_line(_title(dataset))
    print_table([
        ("column", "type", "datatype", "shape of a row"),
        *(
            (
                column.name,
                column.type,
                column.datatype or "-",
                str(list(column.shape)) if column.datatype else "-",
            )
            for column in dataset.columns
        ),
    ])  # fmt: skip


@command.command("preview", help="Print the first rows of a dataset.")
@click.argument("path")
@option(
    "--column", "columns", multiple=True, metavar="NAME",
    help="Print this column; repeat for several [default: all columns]",
)  # fmt: skip
@option(
    "--rows", type=Number(int, 1, 1000), default=10, show_default=True, metavar="N",
    help="Number of rows",
)  # fmt: skip
@pass_flags
def preview(flags: Flags, path: str, columns: Sequence[str], rows: int) -> None:
    with settings.connect(flags) as client:
        found = client.data.preview(path, columns=columns, rows=rows)
    if flags.json:
        print_json({**_as_json(found.dataset), "first_rows": found.rows})
        return
    print_line(_title(found.dataset))
    names = list(columns) or [column.name for column in found.dataset.columns]
    print_table([names, *([_cell(row.get(name)) for name in names] for row in found.rows)])


@command.command(
    "put",
    help="Upload a file or folder to a server with --dataset_root, as the dataset NAME. To "
    "continue an upload that was interrupted, run the same command again. NAME has letters, "
    "digits, '_', '-' and '.', and no '/'; the name of a file keeps its suffix.",
    short_help="Upload a file or folder as a dataset",
)
@click.argument("path", type=click.Path())
@click.argument("name")
@option("--overwrite", is_flag=True, help="Replace a different dataset of this name")
@pass_flags
def put(flags: Flags, path: str, name: str, overwrite: bool) -> int:
    from braid.errors import AlreadyExists

    try:
        with settings.connect(flags) as client, _UploadBar(flags.json) as bar:
            try:
                stored = client.data.put(path, name, overwrite=overwrite, progress=bar.update)
            except AlreadyExists as error:
                text = errors.rejected(error).message.replace("`overwrite`", "--overwrite")
                raise errors.Failure(text) from None
    except KeyboardInterrupt:
        click.echo("braid: interrupted: run the same command again to continue", err=True)
        return errors.INTERRUPTED
    if flags.json:
        print_json({
            "dataset": name, "path": stored.path, "result": stored.result,
            "files": stored.files, "bytes": stored.bytes,
        })  # fmt: skip
        return 0
    size = f"{count_text(stored.files, 'file')}, {bytes_text(stored.bytes)}"
    print_line(f"{name}: {stored.result}, {size}; path in jobs: {stored.path}")
    return 0


@command.command(
    "rm",
    help="Delete the dataset NAME in the server's --dataset_root. Also takes the path that put "
    "prints.",
    short_help="Delete a dataset in the server's --dataset_root",
)
@click.argument("name")
@pass_flags
def remove(flags: Flags, name: str) -> None:
    with settings.connect(flags) as client:
        client.data.delete(name)
    if flags.json:
        print_json({"dataset": name})
    else:
        print_line(f"{name}: deleted")


class _UploadBar:
    """Bar on stderr if that is a terminal, else nothing."""

    def __init__(self, json: bool) -> None:
        self._bar: Any = None
        self._stage = ""
        if not json and sys.stderr.isatty():
            from rich import progress as rich
            from rich.console import Console
            from rich.text import Text

            class Speed(rich.ProgressColumn):
                def render(self, task: rich.Task) -> Text:
                    speed = task.finished_speed or task.speed
                    text = "?" if speed is None else f"{bytes_text(int(speed))}/s"
                    return Text(text, style="progress.data.speed")

            self._bar = rich.Progress(
                rich.TextColumn("{task.description}"),
                rich.BarColumn(),
                rich.DownloadColumn(binary_units=True),
                Speed(),
                rich.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> _UploadBar:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        if not self._bar:
            return
        if stage != self._stage:
            self._stage = stage
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._task = self._bar.add_task(stage, total=total)
        self._bar.update(self._task, completed=done)


def _title(dataset: Dataset) -> str:
    if dataset.rows is None:
        rows = f"rows unknown ({dataset.format} is counted while a job reads it)"
    else:
        rows = count_text(dataset.rows, "row")
    return f"{dataset.path}  {dataset.format}, {rows}"


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 1]}…"


def _as_json(dataset: Dataset) -> dict[str, Any]:
    return {
        "path": dataset.path,
        "format": dataset.format,
        "rows": dataset.rows,
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "datatype": column.datatype or None,
                "shape": list(column.shape) if column.datatype else None,
            }
            for column in dataset.columns
        ],
    }
