"""`braid devices`: what the server runs on, and how busy each device was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from braid.cli import options, settings
from braid.cli.options import Flags, pass_flags
from braid.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from braid.results import Device

# In the order of a training step. A phase that the server adds later comes after these.
_PHASES = (
    "load", "copy_in", "forward", "loss", "backward", "reduce", "update", "broadcast", "copy_out",
)  # fmt: skip


@options.command(
    "devices",
    help="List the devices of the server, and the share of the time since its start that each was "
    "busy, by phase.",
    short_help="List the devices and how busy they were",
)
@pass_flags
def command(flags: Flags) -> None:
    with settings.connect(flags) as client:
        devices = client.devices()
    uptime = devices[0].uptime_seconds if devices else 0.0
    if flags.json:
        print_json({
            "uptime_seconds": uptime,
            "devices": [
                {
                    "device": device.name,
                    "kind": device.kind,
                    "threads": device.threads,
                    "hardware": device.hardware,
                    "samples": device.samples,
                    "busy_seconds": device.busy_seconds,
                }
                for device in devices
            ],
        })  # fmt: skip
        return
    phases = _used_phases(devices)
    rows = [
        (
            device.name,
            device.kind,
            str(device.threads or "-"),
            device.hardware or "-",
            str(device.samples),
            _share(sum(device.busy_seconds.values()), uptime),
            *(_share(device.busy_seconds.get(phase, 0.0), uptime) for phase in phases),
        )
        for device in devices
    ]
    print_table([("device", "kind", "threads", "hardware", "samples", "busy", *phases), *rows])
    print_line(f"up for {uptime:.0f} s; shares are of that time")


def _used_phases(devices: Sequence[Device]) -> list[str]:
    """Returns the phases that any device spent time in."""
    used = {
        phase for device in devices for phase, seconds in device.busy_seconds.items() if seconds > 0
    }
    return [phase for phase in _PHASES if phase in used] + sorted(used.difference(_PHASES))


def _share(seconds: float, uptime: float) -> str:
    return f"{100 * seconds / uptime:.1f}%" if uptime > 0 else "-"
