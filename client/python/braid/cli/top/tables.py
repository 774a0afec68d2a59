"""Lines of `braid top`: for a screen of a certain size, and for a plain table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from braid._job_progress import duration_text
from braid.cli.output import bytes_text, printable
from braid.cli.progress import loss_text
from braid.cli.top.view import DeviceView, View

if TYPE_CHECKING:
    from braid.cli.top.view import JobView, ModelView, TrainerView

_GAP = 2
_MIN_NAME = 12
_BAR_WIDTH = 10
_MAX_PHASES = 3
_UNKNOWN = "-"
_STATE_STYLES = {
    "RUNNING": "green", "QUEUED": "yellow", "PAUSED": "yellow", "FAILED": "red",
    "SUCCEEDED": "dim", "CANCELLED": "dim",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """Column of a table.

    drop: columns with a larger number are left out first where the screen is too narrow; 0: never.
    """

    heading: str
    right: bool = False
    drop: int = 0


@dataclass(frozen=True)
class Section:
    """Table of one kind of thing. The first column is its name, which a narrow screen shortens."""

    nouns: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Text]]


def screen_lines(
    view: View | None, title: str, status: str, width: int, height: int, *, ascii_only: bool = False
) -> list[Text]:
    """Returns at most `height` lines of at most `width` cells.

    view: None before the first sample. title: name of the server. status: why the figures are
    old, or "".
    """
    head = _head(view, title, width)
    lines = [head]
    if status:
        lines.append(Text(printable(status), style="bold red"))
    if view is not None:
        notes = [f"{name}: {reason}" for name, reason in view.notes.items()]
        lines += [Text(printable(note), style="yellow") for note in notes]
        sections = _sections(view, bars=True, ascii_only=ascii_only)
        missing = [each.nouns for each in sections if not each.rows and each.nouns not in view.notes]
        tail = [f"no {', no '.join(missing)}"] if missing else []
        if not view.has_metrics and "metrics" not in view.notes:
            tail.append("p50, p99, memory of devices and loss of trainers: --metrics HOST:PORT")
        shown = [each for each in sections if each.rows]
        free = height - len(lines) - len(tail) - 2 * len(shown)
        for section, count in zip(shown, _share([len(each.rows) for each in shown], free)):
            lines += [Text(), *_section_lines(section, count, width, ascii_only)]
        lines += [Text(text, style="dim") for text in tail]
    for line in lines:
        line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
    return lines[:height]


def plain_lines(view: View) -> list[str]:
    """Returns the tables as text of any width, without bars."""
    lines = [f"up for {duration_text(view.uptime_seconds)}"]
    for name, reason in view.notes.items():
        lines.append(printable(f"{name}: {reason}"))
    for section in _sections(view, bars=False, ascii_only=True):
        if section.rows:
            table = _table(section.columns, section.rows, None, True)
            lines += ["", *(line.plain.rstrip() for line in table)]
        elif section.nouns not in view.notes:
            lines += ["", f"no {section.nouns}"]
    return lines


def _head(view: View | None, title: str, width: int) -> Text:
    left = Text.assemble(("braid top", "bold"), f"  {printable(title)}")
    if view is not None:
        left.append(f"  up {duration_text(view.uptime_seconds)}")
    keys = "q quits"
    if left.cell_len + _GAP + len(keys) <= width:
        left.pad_right(width - left.cell_len - len(keys))
        left.append(keys, style="dim")
    return left


def _share(needs: Sequence[int], free: int) -> list[int]:
    """Splits `free` lines fairly among sections, at most as many as each needs, at least one."""
    counts = [1] * len(needs)
    free -= len(needs)
    while free > 0 and any(count < need for count, need in zip(counts, needs)):
        for index, need in enumerate(needs):
            if counts[index] < need and free > 0:
                counts[index] += 1
                free -= 1
    return counts


def _section_lines(section: Section, count: int, width: int, ascii_only: bool) -> list[Text]:
    if count >= len(section.rows):
        return _table(section.columns, section.rows, width, ascii_only)
    rows = section.rows[: count - 1]
    more = f"{'...' if ascii_only else '…'} {len(section.rows) - len(rows)} more"
    return [*_table(section.columns, rows, width, ascii_only), Text(more, style="dim")]


def _table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Text]],
    width: int | None,
    ascii_only: bool,
) -> list[Text]:
    """Returns a heading and a line for each row. width: None: as wide as necessary."""
    widths = [
        max(len(column.heading), *(row[at].cell_len for row in rows), 0)
        for at, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    if width is not None:
        while sum(widths[at] + _GAP for at in kept[1:]) + min(widths[0], _MIN_NAME) > width:
            least = max(kept, key=lambda at: columns[at].drop)
            if columns[least].drop == 0:
                break
            kept.remove(least)
        rest = sum(widths[at] + _GAP for at in kept[1:])
        widths[0] = max(min(widths[0], width - rest), 1)
    headings = [Text(column.heading, style="bold") for column in columns]
    lines = []
    for row in (headings, *rows):
        line = Text()
        for at in kept:
            cell = row[at].copy()
            cell.truncate(widths[at], overflow="crop" if ascii_only else "ellipsis")
            padding = " " * (widths[at] - cell.cell_len)
            line.append_text(Text(" " * _GAP if at else ""))
            line.append_text(Text(padding) + cell if columns[at].right else cell + Text(padding))
        line.rstrip()
        lines.append(line)
    return lines


def _sections(view: View, *, bars: bool, ascii_only: bool) -> list[Section]:
    return [
        _devices(view, bars, ascii_only),
        _models(view),
        _trainers(view),
        _jobs(view, bars, ascii_only),
    ]


def _devices(view: View, bars: bool, ascii_only: bool) -> Section:
    columns = [
        Column("device"),
        Column("busy", right=True),
        *([Column("", drop=3)] if bars else []),
        Column("phases", drop=2),
        Column("rows/s", right=True, drop=1),
        *([Column("memory", right=True)] if view.has_metrics else []),
        Column("hardware", drop=4),
    ]

    def row(device: DeviceView) -> list[Text]:
        bar = [_bar(device.utilization, ascii_only)] if bars else []
        memory = [_cell(_memory_text(device))] if view.has_metrics else []
        return [
            _cell(device.device),
            _cell(_percent(device.utilization)),
            *bar,
            _cell(_phases_text(device)),
            _cell(_rate_text(device.rows_per_second)),
            *memory,
            _cell(device.hardware or _UNKNOWN),
        ]

    rows = [row(device) for device in view.devices]
    if not any(device.hardware for device in view.devices):
        columns.pop()
        rows = [row[:-1] for row in rows]
    return Section("devices", columns, rows)


def _models(view: View) -> Section:
    columns = [
        Column("model"),
        Column("version", right=True, drop=5),
        Column("requests/s", right=True),
        Column("failed/s", right=True, drop=4),
        Column("rows/s", right=True, drop=2),
        Column("rows/batch", right=True, drop=6),
        Column("mean", right=True, drop=3 if view.has_metrics else 0),
        *([Column("p50", right=True), Column("p99", right=True)] if view.has_metrics else []),
        Column("queued", right=True, drop=1),
        *([Column("waiting", right=True)] if view.has_metrics else []),
    ]

    def row(model: ModelView) -> list[Text]:
        quantiles = (
            [_cell(_seconds_text(model.p50_seconds)), _cell(_seconds_text(model.p99_seconds))]
            if view.has_metrics
            else []
        )
        waiting = (
            [_cell(_UNKNOWN if model.queue_rows is None else str(model.queue_rows))]
            if view.has_metrics
            else []
        )
        failures = model.failures_per_second
        return [
            _cell(model.model),
            _cell(",".join(model.versions)),
            _cell(_rate_text(model.requests_per_second)),
            _cell(_rate_text(failures), "red" if failures else ""),
            _cell(_rate_text(model.rows_per_second)),
            _cell(_rate_text(model.rows_per_batch)),
            _cell(_seconds_text(model.mean_seconds)),
            *quantiles,
            _cell(_seconds_text(model.queue_seconds)),
            *waiting,
        ]

    return Section("models", columns, [row(model) for model in view.models])


def _trainers(view: View) -> Section:
    columns = [
        Column("trainer"),
        Column("model", drop=2),
        Column("step", right=True),
        Column("steps/s", right=True),
        *([Column("loss", right=True)] if view.has_metrics else []),
        Column("lr", right=True, drop=1),
        Column("memory", right=True),
        Column("devices", drop=3),
    ]

    def row(trainer: TrainerView) -> list[Text]:
        loss = [_cell(_loss_text(trainer.loss))] if view.has_metrics else []
        return [
            _cell(trainer.trainer),
            _cell(trainer.model),
            _cell(str(trainer.step)),
            _cell(_rate_text(trainer.steps_per_second)),
            *loss,
            _cell(f"{trainer.lr:.3g}"),
            _cell(bytes_text(trainer.memory_bytes)),
            _cell(",".join(trainer.devices)),
        ]

    return Section("trainers", columns, [row(trainer) for trainer in view.trainers])


def _jobs(view: View, bars: bool, ascii_only: bool) -> Section:
    columns = [
        Column("job"),
        Column("kind", drop=2),
        Column("model", drop=3),
        Column("state"),
        Column("done", right=True),
        *([Column("", drop=4)] if bars else []),
        Column("loss", right=True),
        Column("rows/s", right=True),
        Column("left", right=True, drop=1),
    ]

    def row(job: JobView) -> list[Text]:
        running = job.state == "RUNNING"
        bar = [_bar(job.progress if running else None, ascii_only)] if bars else []
        return [
            _cell(job.job),
            _cell(job.kind),
            _cell(job.model),
            _cell(job.state, _STATE_STYLES.get(job.state, "")),
            _cell(_percent(job.progress)),
            *bar,
            _cell(_loss_text(job.loss)),
            _cell(_rate_text(job.rows_per_second if running else None)),
            _cell(_UNKNOWN if job.seconds_left is None else duration_text(job.seconds_left)),
        ]

    return Section("jobs", columns, [row(job) for job in view.jobs])


def _cell(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _bar(share: float | None, ascii_only: bool) -> Text:
    if share is None:
        return Text()
    full = round(share * _BAR_WIDTH)
    done, rest = ("#", "-") if ascii_only else ("█", "░")
    return Text.assemble((done * full, "cyan"), (rest * (_BAR_WIDTH - full), "dim"))


def _phases_text(device: DeviceView) -> str:
    named = [(phase, share) for phase, share in device.phases.items() if share >= 0.005]
    return " ".join(f"{phase} {_percent(share)}" for phase, share in named[:_MAX_PHASES])


def _memory_text(device: DeviceView) -> str:
    if device.memory_bytes is None:
        return _UNKNOWN
    used = bytes_text(round(device.memory_bytes))
    total = device.memory_total_bytes
    return used if total is None else f"{used} of {bytes_text(round(total))}"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100 * share:.0f}%"


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return _UNKNOWN
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}"


def _loss_text(loss: float | None) -> str:
    return _UNKNOWN if loss is None else loss_text(loss)


def _seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    for value, unit in ((seconds * 1e3, "ms"), (seconds, "s")):
        if value < 999.5 or unit == "s":
            digits = 2 if value < 10 else 1 if value < 100 else 0
            break
    return f"{value:.{digits}f} {unit}"
