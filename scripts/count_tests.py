#!/usr/bin/env python3
"""Adds up the suites that scripts/test.sh ran.

usage: count_tests.py DIRECTORY

For each suite, DIRECTORY contains NAME.status (its exit status), NAME.seconds (how long it ran) and
perhaps NAME.xml (JUnit, written by pytest or GoogleTest). A suite without NAME.xml counts as one
test. A suite that exits with an error although no test failed counts as one more failure. Prints a
line per suite, then the totals: "N passed, N failed, N skipped". Exits with 1 if anything failed or
nothing passed.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

OUTCOMES = ("passed", "failed", "skipped")
# pytest's exit status when no test ran, which includes files that skip themselves.
PYTEST_NOTHING_RAN = 5


def outcome(case):
    """Returns the outcome of a JUnit <testcase>."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    # GoogleTest marks a disabled test with an attribute.
    not_run = case.find("skipped") is not None or case.get("status") == "notrun"
    return "skipped" if not_run else "passed"


def count(status, junit):
    """Returns {outcome: number} for a suite. `junit` is its JUnit text, None if it wrote none."""
    counts = dict.fromkeys(OUTCOMES, 0)
    if junit is not None:
        try:
            cases = list(ElementTree.fromstring(junit).iter("testcase"))
        except ElementTree.ParseError:  # killed while writing it
            cases = []
        for case in cases:
            counts[outcome(case)] += 1
    elif status == 0:
        counts["passed"] = 1
    only_skipped = status == PYTEST_NOTHING_RAN and counts["skipped"]
    if status != 0 and not counts["failed"] and not only_skipped:
        counts["failed"] = 1
    return counts


def describe(counts):
    return ", ".join(f"{counts[name]} {name}" for name in OUTCOMES)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    totals = dict.fromkeys(OUTCOMES, 0)
    # In the order in which they ran.
    suites = pathlib.Path(sys.argv[1]).glob("*.status")
    for status in sorted(suites, key=lambda path: path.stat().st_mtime_ns):
        junit = status.with_suffix(".xml")
        counts = count(int(status.read_text()), junit.read_bytes() if junit.exists() else None)
        seconds = int(status.with_suffix(".seconds").read_text())
        print(f"{status.stem:20} {seconds:5} s  {describe(counts)}")
        for name in OUTCOMES:
            totals[name] += counts[name]
    print(describe(totals))
    sys.exit(0 if totals["passed"] and not totals["failed"] else 1)


if __name__ == "__main__":
    main()
