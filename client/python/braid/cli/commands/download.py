"""`braid download`: writes the model of a trainer to a file."""

from __future__ import annotations

import click

from braid.cli import options, settings
from braid.cli.options import Flags, Word, option, pass_flags
from braid.cli.output import bytes_text, print_json, print_line


@options.command("download", help="Write the model of a trainer, with its weights, to a file.")
@click.argument("trainer")
@click.argument("file", type=click.Path())
@option(
    "--format", type=Word(("package", "safetensors", "torchscript")),
    help="torchscript: for torch.jit.load; safetensors: parameters and buffers; package: the "
    "graphs of an exported pair, without weights [default: by the suffix of FILE, .pt, "
    ".safetensors or .pt2; without a suffix: a folder with all files of a version]",
)  # fmt: skip
@option(
    "--trainable-only", is_flag=True,
    help="Write only the parameters that updates change, without buffers and frozen parameters, as "
    "safetensors; those of a LoRA model get the names that peft loads",
)  # fmt: skip
@pass_flags
def command(
    flags: Flags, trainer: str, file: str, format: str | None, trainable_only: bool
) -> None:
    from braid import _download

    try:
        chosen = format or _download.format_of(file)
    except ValueError as error:
        raise click.UsageError(str(error).replace("`format`", "--format")) from None
    if trainable_only and chosen != "safetensors":
        raise click.UsageError(
            f"--trainable-only: invalid FILE {file!r} (expected a name that ends in .safetensors)"
        )
    with settings.connect(flags) as client:
        size = client.trainer(trainer).download(file, format, trainable_only=trainable_only)
    if flags.json:
        print_json({"file": file, "format": chosen, "bytes": size})
    else:
        print_line(f"wrote {file}, {bytes_text(size)}")
