#!/usr/bin/env python3
"""Adds up the suites that scripts/test.sh ran.

usage: count_tests.py DIRECTORY

DIRECTORY holds, for each suite, NAME.status (its exit status) and, where it wrote one, NAME.xml
(JUnit, of pytest or GoogleTest). A suite without NAME.xml counts as one test; one that ended with an
error although none of its tests failed has failed once more. Prints a line a suite and, last, the
totals: "N passed, N failed, N skipped". Exits with 1 if anything failed or nothing passed.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

OUTCOMES = ("passed", "failed", "skipped")
# pytest's exit status where no test ran; it is also that of files that skip themselves whole.
PYTEST_NOTHING_RAN = 5


def outcome(case):
    """What a JUnit <testcase> says of its test."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    # GoogleTest says of a disabled test that it was not run, in an attribute.
    not_run = case.find("skipped") is not None or case.get("status") == "notrun"
    return "skipped" if not_run else "passed"


def count(status, junit):
    """{outcome: number} of a suite; `junit` is its JUnit text, None if it wrote none."""
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
        print(f"{status.stem:10} {describe(counts)}")
        for name in OUTCOMES:
            totals[name] += counts[name]
    print(describe(totals))
    sys.exit(0 if totals["passed"] and not totals["failed"] else 1)


if __name__ == "__main__":
    main()
