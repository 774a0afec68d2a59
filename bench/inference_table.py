"""Rounds in which several sides take turns, and tables of ratios that hold within one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable


def alternate(rounds: int, *sides: Callable) -> list[tuple]:
    """Of each round what the sides returned, whichever went first."""
    results = []
    for number in range(rounds):
        order = list(enumerate(sides))
        if number % 2:
            order.reverse()
        returned = {place: side() for place, side in order}
        results.append(tuple(returned[place] for place in range(len(sides))))
    return results


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
