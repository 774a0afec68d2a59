"""`braid trainers`: the trainers on the server."""

from __future__ import annotations

from collections.abc import Mapping

from braid.cli import options, settings
from braid.cli.options import Flags, pass_flags
from braid.cli.output import bytes_text, print_json, print_table


def _rates_text(rates: Mapping[str, float]) -> str:
    """Returns "0.1", or with groups "0.1, ^head 0.01"."""
    return ", ".join(f"{group} {rate:g}".lstrip() for group, rate in rates.items())


@options.command(
    "trainers",
    help="List the trainers of the server: where each stands, and its memory.",
    short_help="List the trainers and their memory",
)
@pass_flags
def command(flags: Flags) -> None:
    with settings.connect(flags) as client:
        trainers = client.trainers()
    if flags.json:
        print_json({
            "trainers": [
                {
                    "trainer": trainer.name,
                    "model": trainer.model,
                    "base_version": trainer.base_version,
                    "step": trainer.step,
                    "applied_sequence": trainer.applied_sequence,
                    "durable_sequence": trainer.durable_sequence,
                    "skipped": trainer.skipped,
                    "lr": trainer.lr,
                    "lrs": trainer.lrs,
                    "devices": list(trainer.devices),
                    "memory": [
                        {
                            "device": memory.device,
                            "current_bytes": memory.current_bytes,
                            "peak_bytes": memory.peak_bytes,
                        }
                        for memory in trainer.memory
                    ],
                }
                for trainer in trainers
            ]
        })  # fmt: skip
        return
    print_table([
        ("trainer", "model", "step", "applied", "durable", "skipped", "lr", "memory"),
        *(
            (
                trainer.name,
                trainer.model,
                str(trainer.step),
                str(trainer.applied_sequence),
                str(trainer.durable_sequence),
                str(trainer.skipped),
                _rates_text(trainer.lrs),
                ", ".join(
                    f"{memory.device} {bytes_text(memory.current_bytes)} "
                    f"(peak {bytes_text(memory.peak_bytes)})"
                    for memory in trainer.memory
                ),
            )
            for trainer in trainers
        ),
    ])  # fmt: skip
