"""`braid models`: what the repository of the server contains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from braid.cli import options, settings
from braid.cli.options import Flags, pass_flags
from braid.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    import braid
    from braid.results import TensorMetadata


@options.command(
    "models",
    help="List the models of the server, or show the inputs and outputs of one.",
    short_help="List the models, or show one",
)
@click.argument("model", required=False)
@pass_flags
def command(flags: Flags, model: str | None) -> None:
    with settings.connect(flags) as client:
        if model is None:
            _list(client, flags.json)
        else:
            _show(client, model, flags.json)


def _list(client: braid.Client, json: bool) -> None:
    rows = [
        (model.name, "" if model.version is None else str(model.version), model.state, model.reason)
        for model in client.models()
    ]
    headings = ("model", "version", "state", "reason")
    if json:
        print_json({"models": [dict(zip(headings, row)) for row in rows]})
    else:
        print_table([headings, *rows])


def _show(client: braid.Client, name: str, json: bool) -> None:
    model = client.model_metadata(name)
    versions = [str(version) for version in model.versions]
    if json:
        print_json({
            "model": model.name,
            "versions": versions,
            "platform": model.platform,
            "inputs": _as_json(model.inputs),
            "outputs": _as_json(model.outputs),
        })  # fmt: skip
        return
    noun = "version" if len(versions) == 1 else "versions"
    print_line(f"model {model.name}, {noun} {', '.join(versions)}, platform {model.platform}")
    print_table([
        ("", "name", "datatype", "shape"),
        *(
            (kind, tensor.name, tensor.datatype, str(list(tensor.shape)))
            for kind, tensors in (("input", model.inputs), ("output", model.outputs))
            for tensor in tensors
        ),
    ])  # fmt: skip


def _as_json(tensors: Sequence[TensorMetadata]) -> list[dict[str, Any]]:
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in tensors
    ]
