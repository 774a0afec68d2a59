"""`braid models`: the models of the server and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from braid.cli import errors, options, settings
from braid.cli.options import Flags, Number, option, pass_flags
from braid.cli.output import print_json, print_line, print_table, time_text

if TYPE_CHECKING:
    import braid
    from braid.results import ModelMetadata, ModelVersion, TensorMetadata

_VERSION = Number(int, 1, (1 << 63) - 1)


class _Models(options.Group):
    """Group that takes a word other than its commands for the model of `show`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            return "show", show, args
        return super().resolve_command(ctx, args)


@click.group(
    "models",
    cls=_Models,
    invoke_without_command=True,
    help="List the models of the server; show one; pin, label, delete and upload versions.",
    short_help="List the models, or manage the versions of one",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        flags = ctx.ensure_object(Flags)
        with settings.connect(flags) as client:
            _list(client, flags.json)


@command.command("show", help="Show the inputs, outputs and all versions of a model.")
@click.argument("model")
@pass_flags
def show(flags: Flags, model: str) -> None:
    from braid.errors import NotFound

    with settings.connect(flags) as client:
        versions = client.list_versions(model)
        try:
            metadata = client.model_metadata(model)
        except NotFound:  # No version is served.
            metadata = None
    if flags.json:
        print_json({
            "model": model,
            "versions": [str(each) for each in metadata.versions] if metadata else [],
            "platform": metadata.platform if metadata else "",
            "inputs": _as_json(metadata.inputs if metadata else ()),
            "outputs": _as_json(metadata.outputs if metadata else ()),
            "all_versions": [_version_as_json(version) for version in versions],
        })  # fmt: skip
        return
    if metadata is None:
        print_line(f"model {model}, no version is served")
    else:
        _print_metadata(metadata)
    print_line("")
    print_table([
        ("version", "origin", "state", "files", "pin", "labels", "created", "reason"),
        *(
            (
                str(version.version),
                _origin(version),
                "serving" if version.serving else version.state,
                "" if version.durability == "unspecified" else version.durability,
                "pinned" if version.pinned else "",
                ", ".join(version.labels),
                time_text(version.created) if version.created else "",
                version.reason or version.durability_reason,
            )
            for version in versions
        ),
    ])  # fmt: skip


@command.command(
    "pin",
    help="Serve a version to requests without a version, also after later exports and uploads.",
    short_help="Serve a version until unpin or the next publish",
)
@click.argument("model")
@click.argument("version", type=_VERSION)
@pass_flags
def pin(flags: Flags, model: str, version: int) -> None:
    with settings.connect(flags) as client:
        previous = client.pin(model, version)
    if flags.json:
        print_json({"model": model, "version": version, "previous_version": previous})
        return
    print_line(f"{model} serves version {version}{before_text(version, previous)}")
    print_line(pin_text(model, version))


@command.command("unpin", help="End a pin, and serve the newest version.")
@click.argument("model")
@pass_flags
def unpin(flags: Flags, model: str) -> None:
    with settings.connect(flags) as client:
        version = client.unpin(model)
    if flags.json:
        print_json({"model": model, "version": version})
    else:
        print_line(f"{model} serves version {version}, the newest")


@command.command(
    "label",
    help="Point a label, such as stable, at a version. Requests can then use the label in place of "
    "a number. --remove deletes the label.",
    short_help="Point a label at a version, or remove it",
)
@click.argument("model")
@click.argument("label")
@click.argument("version", type=_VERSION, required=False)
@option("--remove", is_flag=True, help="Remove the label")
@pass_flags
def label(flags: Flags, model: str, label: str, version: int | None, remove: bool) -> None:
    if remove == (version is not None):
        problem = "given with --remove" if remove else "missing"
        expected = "give only one of them" if remove else "give a version, or --remove"
        raise errors.usage("VERSION", problem, expected)
    with settings.connect(flags) as client:
        previous = client.set_label(model, label, version)
    if flags.json:
        print_json({
            "model": model, "label": label, "version": version, "previous_version": previous,
        })  # fmt: skip
        return
    before = "" if previous is None else before_text(version, previous)
    now = "removed" if version is None else f"version {version}"
    print_line(f"{model} {label}: {now}{before}")


@command.command("delete", help="Delete a version that was published or uploaded.")
@click.argument("model")
@click.argument("version", type=_VERSION)
@pass_flags
def delete(flags: Flags, model: str, version: int) -> None:
    with settings.connect(flags) as client:
        client.delete_version(model, version)
    if flags.json:
        print_json({"model": model, "version": version})
    else:
        print_line(f"{model}: deleted version {version}")


@command.command(
    "upload",
    help="Upload a version to a server with --allow_model_upload. PATH is the folder of a version, "
    "or the model file in it.",
)
@click.argument("model")
@click.argument("path", type=click.Path())
@pass_flags
def upload(flags: Flags, model: str, path: str) -> None:
    with settings.connect(flags) as client:
        try:
            reply = client._upload(model, path)
        except ValueError as error:
            raise errors.Failure(str(error)) from error
        versions = [] if reply.serving else client.list_versions(model)
    if flags.json:
        print_json({"model": model, "version": reply.version, "serving": reply.serving})
        return
    pins = "".join(
        f"; not served: version {each.version} is pinned" for each in versions if each.pinned
    )
    print_line(f"{model}: uploaded {path} as version {reply.version}{pins}")


def before_text(version: int | None, previous: int) -> str:
    """Returns the version that `version` replaced, in parentheses."""
    return " (as before)" if version == previous else f" (until now: version {previous})"


def pin_text(model: str, version: int) -> str:
    """Returns what a pin does and how to undo it."""
    return (
        f"version {version} is pinned: later exports and uploads are not served until the next "
        f"publish or: braid models unpin {model}"
    )


def _list(client: braid.Client, json: bool) -> None:
    from braid.errors import Unimplemented

    try:
        versions = client.list_versions()
    except Unimplemented:  # The server is older than ModelService.
        versions = []
    chosen = {
        (version.model, version.version): version
        for version in versions
        if version.state != "ignored"
    }
    rows = []
    for model in client.models():
        found = chosen.get((model.name, model.version or 0))
        rows.append({
            "model": model.name,
            "version": "" if model.version is None else str(model.version),
            "state": model.state,
            "reason": model.reason,
            "pinned": found is not None and found.pinned,
            "labels": list(found.labels) if found else [],
        })  # fmt: skip
    if json:
        print_json({"models": rows})
        return
    print_table([
        ("model", "version", "state", "pin", "labels", "reason"),
        *(
            (
                row["model"],
                row["version"],
                row["state"],
                "pinned" if row["pinned"] else "",
                ", ".join(row["labels"]),
                row["reason"],
            )
            for row in rows
        ),
    ])  # fmt: skip


def _print_metadata(model: ModelMetadata) -> None:
    noun = "version" if len(model.versions) == 1 else "versions"
    versions = ", ".join(str(version) for version in model.versions)
    print_line(f"model {model.name}, {noun} {versions}, platform {model.platform}")
    print_table([
        ("", "name", "datatype", "shape"),
        *(
            (kind, tensor.name, tensor.datatype, str(list(tensor.shape)))
            for kind, tensors in (("input", model.inputs), ("output", model.outputs))
            for tensor in tensors
        ),
    ])  # fmt: skip


def _origin(version: ModelVersion) -> str:
    if version.origin != "published":
        return version.origin
    return f"published by {version.trainer} at step {version.step}"


def _version_as_json(version: ModelVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "origin": version.origin,
        "trainer": version.trainer,
        "step": version.step,
        "state": version.state,
        "reason": version.reason,
        "serving": version.serving,
        "pinned": version.pinned,
        "labels": list(version.labels),
        "created": version.created.timestamp() if version.created else None,
        "durability": version.durability,
        "durability_reason": version.durability_reason,
    }


def _as_json(tensors: Sequence[TensorMetadata]) -> list[dict[str, Any]]:
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in tensors
    ]
