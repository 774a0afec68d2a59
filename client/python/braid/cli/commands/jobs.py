"""`braid jobs`: training and scoring on the server, without a connected client."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from braid.cli import errors, options, settings
from braid.cli.options import POSITIVE, Flags, Word, option, pass_flags
from braid.cli.output import (
    count_text,
    json_text,
    print_json,
    print_line,
    print_table,
    printable,
    time_text,
)

if TYPE_CHECKING:
    from braid.jobs import Job, JobEvent, JobInfo, Series

EPILOG = """\
\b
Example:
  braid jobs init train > train.yaml
  braid jobs submit train.yaml --wait
"""
_STATES = ("queued", "running", "paused", "succeeded", "failed", "cancelled")
_LINE_SECONDS = 5.0

command = options.Group(
    "jobs",
    help="Train and score on the server, without a connected client.",
    short_help="Train and score on the server without a client",
    epilog=EPILOG,
)


@command.command("init", help="Print a commented spec of a job, or write it to a new FILE.")
@click.argument("kind", type=Word(("train", "infer")), metavar="train|infer")
@click.argument("file", required=False)
def init(kind: str, file: str | None) -> None:
    from braid.cli import job_specs

    spec = job_specs.TRAIN if kind == "train" else job_specs.INFER
    if file in (None, "-"):
        sys.stdout.write(spec)
        return
    try:
        with open(file, "x", encoding="utf-8") as new:
            new.write(spec)
    except OSError as error:
        raise errors.usage(file, "cannot be written", error.strerror or str(error)) from None
    print_line(f"wrote {file}")


@command.command(
    "submit",
    help="Submit a job. SPEC is a YAML file; braid jobs init prints an example.\n\n"
    "With --wait, the exit code is 0 only if the job has succeeded. Ctrl-C does not cancel the job.",
)
@click.argument("spec")
@option("--id", "job_id", metavar="ID", help="ID of the job [default: a new one]")
@option("--wait", is_flag=True, help="Wait until the job ends, and print its result")
@option("--dry-run", is_flag=True, help="Only check the spec on the server")
@pass_flags
def submit(flags: Flags, spec: str, job_id: str | None, wait: bool, dry_run: bool) -> int:
    from braid.cli import job_specs

    if dry_run and wait:
        raise errors.usage("--wait", "given with --dry-run", "give only one of them")
    values = job_specs.read(spec)
    with settings.connect(flags) as client, job_specs.errors_by_key(values):
        if dry_run:
            progress = client.jobs.check(values).progress
            if flags.json:
                print_json({"rows": progress.total_rows, "steps": progress.total_steps})
            else:
                length = (
                    f"{count_text(progress.epochs, 'epoch')}, "
                    f"{count_text(progress.total_steps, 'step')}"
                    if progress.total_steps
                    else count_text(progress.total_rows, "row")
                )
                print_line(f"{spec}: valid ({length})")
            return 0
        job = client.jobs.submit(values, id=job_id)
        if not wait:
            if flags.json:
                print_json({"id": job.id, "state": job.info().state})
            else:
                print_line(f"submitted job {job.id}. To follow it: braid jobs watch {job.id}")
            return 0
        if not flags.json:
            print_line(f"submitted job {job.id}")
        return _follow(job, flags.json, prints_events=not flags.json)


@command.command("watch", help="Show the progress of a job until it ends.")
@click.argument("job")
@pass_flags
def watch(flags: Flags, job: str) -> int:
    with settings.connect(flags) as client:
        return _follow(client.jobs.get(job), flags.json, prints_events=True)


@command.command("list", help="List jobs, the newest first.")
@option(
    "--state", "states", type=Word(_STATES), multiple=True,
    help="Only jobs in this state; may be repeated",
)  # fmt: skip
@option("--model", metavar="NAME", help="Only jobs of this model")
@option("--tag", metavar="WORD", help="Only jobs with this tag")
@option(
    "--limit", type=POSITIVE, default=50, show_default=True, metavar="N",
    help="Maximum number of jobs",
)  # fmt: skip
@pass_flags
def list_jobs(
    flags: Flags, states: Sequence[str], model: str | None, tag: str | None, limit: int
) -> None:
    with settings.connect(flags) as client:
        jobs = client.jobs.list_jobs(
            states=[state.upper() for state in states], model=model, tag=tag, limit=limit
        )
    if flags.json:
        print_json({"jobs": [_as_json(job) for job in jobs]})
        return
    print_table([
        ("job", "kind", "model", "priority", "state", "progress", "created"),
        *(
            (
                job.id,
                job.kind,
                job.model,
                str(job.spec.get("priority", 0)),
                job.state,
                _percent(job),
                _time_text(job.created),
            )
            for job in jobs
        ),
    ])  # fmt: skip


@command.command("show", help="Show a job: its state, progress and result.")
@click.argument("job")
@pass_flags
def show(flags: Flags, job: str) -> None:
    from braid import _job_progress

    with settings.connect(flags) as client:
        info = client.jobs.get(job).info()
    if flags.json:
        print_json(_as_json(info))
        return
    pending = ""
    if info.cancel_requested and not info.has_ended:
        pending = ", to be cancelled"
    elif info.pause_requested:
        pending = ", to be paused"
    rows = [
        ("job", info.id),
        ("kind", info.kind),
        ("model", info.model),
        ("priority", str(info.spec.get("priority", ""))),
        ("state", info.state + pending),
        ("reason", _reason(info)),
        ("progress", _job_progress.figures(info.progress)),
        ("created", _time_text(info.created)),
        ("started", _time_text(info.started)),
        ("ended", _time_text(info.ended)),
        ("attempts", str(info.attempts)),
        ("submitted by", info.identity),
        ("tags", ", ".join(info.spec.get("tags", ()))),
        ("trainer", info.trainer if info.attempts else ""),
        ("result", _result_text(info)),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        if value:
            print_line(f"{name.ljust(width)}  {value}")


@command.command(
    "pause",
    help="Pause a job. A running job stops after its current step and saves its progress. The job "
    "stays paused until braid jobs resume, even if the server restarts.",
    short_help="Pause a job until it is resumed.",
)
@click.argument("job")
@pass_flags
def pause(flags: Flags, job: str) -> None:
    with settings.connect(flags) as client:
        info = client.jobs.get(job).pause()
    _print_change(flags, info, stopping="pausing" if info.pause_requested else "")


@command.command(
    "resume", help="Return a paused job to the queue. It continues where it stopped."
)
@click.argument("job")
@pass_flags
def resume(flags: Flags, job: str) -> None:
    with settings.connect(flags) as client:
        info = client.jobs.get(job).resume()
    _print_change(flags, info)


@command.command("cancel", help="Cancel a job. A running job stops after its current step.")
@click.argument("job")
@pass_flags
def cancel(flags: Flags, job: str) -> None:
    with settings.connect(flags) as client:
        info = client.jobs.get(job).cancel()
    if info.has_ended and info.state != "CANCELLED" and not flags.json:
        print_line(f"job {info.id} has already ended: {info.state}")
    else:
        _print_change(flags, info, stopping="" if info.has_ended else "cancelling")


def _print_change(flags: Flags, info: JobInfo, stopping: str = "") -> None:
    """Prints the state after a call. stopping: what a running job does that has not stopped yet."""
    if flags.json:
        print_json({"id": info.id, "state": info.state})
    elif stopping:
        print_line(f"{stopping} job {info.id}: it stops after its current step")
    else:
        print_line(f"job {info.id} is {info.state}")


@command.command(
    "rm",
    help="Delete the records of jobs that have ended, with their metrics, logs and checkpoints. "
    "Outputs and published versions remain.",
    short_help="Delete the records of jobs that have ended.",
)
@click.argument("jobs", nargs=-1, required=True, metavar="JOB…")
@pass_flags
def remove(flags: Flags, jobs: Sequence[str]) -> None:
    with settings.connect(flags) as client:
        for job in jobs:
            client.jobs.get(job).delete()
            if flags.json:
                print_json({"id": job, "deleted": True})
            else:
                print_line(f"deleted job {job}")


@command.command("logs", help="Print the log of a job.")
@click.argument("job")
@pass_flags
def logs(flags: Flags, job: str) -> None:
    from braid.cli import job_specs

    with settings.connect(flags) as client:
        handle = client.jobs.get(job)
        lines = handle.logs()
        spec = handle.info().spec
    for line in lines:
        text = job_specs.with_keys(line.text, spec)
        if flags.json:
            print_json({
                "time": line.time.timestamp(), "level": line.level, "text": text,
            })  # fmt: skip
        else:
            print_line(f"{_time_text(line.time)}  {line.level:7}  {text}")


@command.command("metrics", help="Print the metrics of a job by step.")
@click.argument("job")
@option(
    "--name", "names", multiple=True, metavar="NAME",
    help="Only this metric, such as loss or evaluation/accuracy; may be repeated",
)  # fmt: skip
@pass_flags
def metrics(flags: Flags, job: str, names: Sequence[str]) -> None:
    series = _series(flags, job, names)
    if flags.json:
        print_json({
            name: {"steps": each.steps.tolist(), "values": each.values.tolist()}
            for name, each in series.items()
        })  # fmt: skip
        return
    if not series:
        print_line(f"job {job} has no metrics")
        return
    by_step: dict[int, dict[str, float]] = {}
    for name, each in series.items():
        for step, value in zip(each.steps.tolist(), each.values.tolist()):
            by_step.setdefault(step, {})[name] = value
    print_table([
        ("step", *series),
        *(
            (str(step), *(f"{values[name]:g}" if name in values else "" for name in series))
            for step, values in sorted(by_step.items())
        ),
    ])  # fmt: skip


@command.command(
    "plot",
    help="Draw curves of a job's metrics in the terminal, or write them to a PNG or SVG file.\n\n"
    "Metrics of steps are drawn as curves, metrics of evaluations as marks.",
    short_help="Draw curves of a job's metrics.",
)
@click.argument("job")
@option(
    "--name", "names", multiple=True, metavar="NAME",
    help="Only this metric, such as loss or evaluation/accuracy; may be repeated",
)  # fmt: skip
@option(
    "-o", "--output", metavar="FILE",
    help="Write FILE, which ends in .png or .svg; needs braid-client[plot]",
)  # fmt: skip
@pass_flags
def plot(flags: Flags, job: str, names: Sequence[str], output: str | None) -> None:
    from rich.console import Console

    from braid.cli import plots

    if output is not None and not output.endswith(plots.SUFFIXES):
        expected = f"expected a name that ends in {' or '.join(plots.SUFFIXES)}"
        raise errors.usage("--output", f"unknown format {output!r}", expected)
    if flags.json and output is None:
        expected = "to print the values, use braid jobs metrics --json"
        raise errors.usage("--json", "needs --output", expected)
    series = _series(flags, job, names)
    if not series:
        raise errors.Failure(f"job {job} has no metrics")
    if output is not None:
        plots.write_file(output, f"job {job}", series)
        if flags.json:
            print_json({"output": output, "metrics": list(series)})
        else:
            print_line(f"wrote {output}")
        return
    console = Console()
    lines = plots.text_lines(series, console.width, ascii_only=console.options.ascii_only)
    for line in lines:
        print_line(line)


def _series(flags: Flags, job: str, names: Sequence[str]) -> dict[str, Series]:
    """Returns metrics of a job, all without `names`. Raises Failure for an unknown name."""
    with settings.connect(flags) as client:
        handle = client.jobs.get(job)
        series = handle.metrics(names)
        known = series if all(name in series for name in names) else handle.metrics()
    for name in names:
        if known and name not in known:
            expected = f"expected one of: {', '.join(known)}"
            raise errors.Failure(f"--name: job {job} has no metric {name!r} ({expected})")
    return series


def _follow(job: Job, json: bool, *, prints_events: bool) -> int:
    """Waits for the end of a job, and prints its result. Returns the exit code."""
    try:
        with _event_printer(job, json) as print_event:
            for event in job.watch():
                if prints_events:
                    print_event(event)
    except KeyboardInterrupt:
        click.echo(
            f"braid: job {job.id} is still running; to follow it: braid jobs watch {job.id}",
            err=True,
        )
        return errors.INTERRUPTED
    info = job.info()
    if json:
        print_json(_result_json(info))
    else:
        parts = (f"job {info.id} {info.state}", _result_text(info), _reason(info))
        print_line("  ".join(part for part in parts if part))
    return 0 if info.state == "SUCCEEDED" else errors.FAILED


@contextmanager
def _event_printer(job: Job, json: bool) -> Iterator[Any]:
    """Yields a function that prints events: as JSON, as a bar on a terminal, or as lines."""
    if not sys.stdout.isatty() or json:
        yield _LinePrinter(json).print
        return
    from braid._job_progress import ProgressBar

    bar = ProgressBar(printable(job.id), sys.stdout)
    try:
        yield bar.update
    finally:
        bar.close()


class _LinePrinter:
    """Prints a line for each change of state but the last, and one for the progress every 5 s."""

    def __init__(self, json: bool) -> None:
        from braid._job_progress import Rate
        from braid.jobs import ENDED_STATES

        self._json = json
        self._ended = ENDED_STATES
        self._rate = Rate()
        self._next = 0.0

    def print(self, event: JobEvent) -> None:
        if self._json:
            _write(json_text(_event_json(event)))
        elif event.transition is not None and event.transition.state in self._ended:
            pass  # The result follows.
        elif event.transition is not None:
            _write(f"{event.transition.state}  {event.transition.reason}".rstrip())
        elif event.progress and event.progress.total_rows:
            from braid import _job_progress

            now = time.monotonic()
            rate = self._rate.add(event.progress.rows_per_second, now)
            if now >= self._next:
                self._next = now + _LINE_SECONDS
                _write(_job_progress.figures(event.progress, rate))


def _write(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def _percent(info: JobInfo) -> str:
    progress = info.progress
    return f"{100 * progress.rows / progress.total_rows:.0f}%" if progress.total_rows else ""


def _time_text(time: datetime | None) -> str:
    return time_text(time) if time else ""


def _reason(info: JobInfo) -> str:
    from braid.cli import job_specs

    return job_specs.with_keys(info.reason, info.spec)


def _result_text(info: JobInfo) -> str:
    result = info.result
    if result is None:
        return ""
    parts = [f"version {result.version}"] if result.version is not None else []
    parts += [f"{name} {value:g}" for name, value in result.metrics.items()]
    if result.output:
        parts.append(f"{count_text(result.rows, 'row')} in {result.output}")
    if result.skipped_rows:
        parts.append(f"{count_text(result.skipped_rows, 'unreadable row')} left out")
    return "  ".join(parts)


def _result_json(info: JobInfo) -> dict[str, Any]:
    result = info.result
    return {
        "id": info.id,
        "state": info.state,
        "reason": _reason(info),
        "metrics": result.metrics if result else {},
        **(
            {"version": result.version if result else None}
            if info.kind == "train"
            else {
                "output": result.output if result else None,
                "rows": result.rows if result else None,
            }
        ),
    }


def _as_json(info: JobInfo) -> dict[str, Any]:
    return {
        **_result_json(info),
        "spec": info.spec,
        "identity": info.identity,
        "created": info.created.timestamp() if info.created else None,
        "started": info.started.timestamp() if info.started else None,
        "ended": info.ended.timestamp() if info.ended else None,
        "attempts": info.attempts,
        "cancel_requested": info.cancel_requested,
        "pause_requested": info.pause_requested,
        "trainer": info.trainer,
        "progress": vars(info.progress),
    }


def _event_json(event: JobEvent) -> dict[str, Any]:
    if event.transition is not None:
        change = event.transition
        return {
            "event": event.number,
            "state": change.state,
            "before": change.before,
            "reason": change.reason,
            "time": change.time.timestamp(),
        }
    return {"event": event.number, "progress": vars(event.progress) if event.progress else {}}
