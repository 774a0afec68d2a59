"""Tables of ratios that hold within one run."""

from __future__ import annotations

import statistics


def spread(values: list[float], form: str) -> str:
    """Median, and the least and the most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} | {least:{form}} to {most:{form}}"


def heading(what: str, rounds: int) -> None:
    print(f"\n| {what} | median | in {rounds} rounds | line | reached |\n|---|---|---|---|---|")


def row(
    what: str, values: list[float], form: str = ".2f", line: float | None = None, sign: str = "≥"
) -> None:
    """line: what the median has to be, at least or (≤) at most; None: it is just told."""
    verdict = " | "
    if line is not None:
        value = statistics.median(values)
        reached = value >= line if sign == "≥" else value <= line
        verdict = f"{sign} {line:g} | {'yes' if reached else 'no'}"
    print(f"| {what} | {spread(values, form)} | {verdict} |", flush=True)
