"""Alternating rounds of measurements and tables of their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable


def alternate(rounds: int, *sides: Callable) -> list[tuple]:
    """Runs all sides in each round, in alternating order. Returns the results of each round."""
    results = []
    for number in range(rounds):
        order = list(enumerate(sides))
        if number % 2:
            order.reverse()
        returned = {index: side() for index, side in order}
        results.append(tuple(returned[index] for index in range(len(sides))))
    return results


def spread(values: list[float], form: str) -> str:
    """Formats the median and the range."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:{form}} | {low:{form}} to {high:{form}}"


def heading(what: str, rounds: int) -> None:
    print(f"\n| {what} | median | in {rounds} rounds | target | met |\n|---|---|---|---|---|")


def row(
    what: str, values: list[float], form: str = ".2f", target: float | None = None, sign: str = "≥"
) -> None:
    """Prints a row. target is the minimum (≥) or maximum (≤) for the median; None for no target."""
    result = " | "
    if target is not None:
        value = statistics.median(values)
        met = value >= target if sign == "≥" else value <= target
        result = f"{sign} {target:g} | {'yes' if met else 'no'}"
    print(f"| {what} | {spread(values, form)} | {result} |", flush=True)
