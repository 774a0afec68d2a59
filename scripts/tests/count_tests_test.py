"""count_tests.py against what GoogleTest and pytest write."""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import count_tests  # noqa: E402

PYTEST = """<testsuites><testsuite errors="1" failures="1" skipped="1" tests="4">
<testcase name="a"/><testcase name="b"><failure message="m">f</failure></testcase>
<testcase name="c"><skipped message="no GPU"/></testcase>
<testcase name="d"><error message="fixture"/></testcase></testsuite></testsuites>"""
GOOGLETEST = """<testsuites tests="4" failures="0" disabled="1"><testsuite name="s">
<testcase name="a" status="run" result="completed"/>
<testcase name="b" status="run" result="completed"/>
<testcase name="c" status="run" result="skipped"><skipped message="no GPU"/></testcase>
<testcase name="DISABLED_d" status="notrun" result="suppressed"/></testsuite></testsuites>"""


def counts(passed, failed, skipped):
    return {"passed": passed, "failed": failed, "skipped": skipped}


def test_junit_of_both_runners():
    assert count_tests.count(1, PYTEST) == counts(1, 2, 1)
    assert count_tests.count(0, GOOGLETEST) == counts(2, 0, 2)


def test_suites_without_junit_count_once():
    assert count_tests.count(0, None) == counts(1, 0, 0)
    assert count_tests.count(3, None) == counts(0, 1, 0)


def test_crashed_suite_counts_as_failed():
    assert count_tests.count(139, GOOGLETEST) == counts(2, 1, 2)
    assert count_tests.count(124, "<testsuite><testcase") == counts(0, 1, 0)


def test_pytests_status_for_nothing_run():
    skipped = '<testsuite><testcase name="m"><skipped message="no GPU"/></testcase></testsuite>'
    assert count_tests.count(5, skipped) == counts(0, 0, 1)
    assert count_tests.count(5, "<testsuite/>") == counts(0, 1, 0)


def run(directory):
    return subprocess.run([sys.executable, count_tests.__file__, directory],
                          capture_output=True, text=True, check=False)


def write_suite(directory, name, status, seconds):
    (directory / f"{name}.status").write_text(f"{status}\n")
    (directory / f"{name}.seconds").write_text(f"{seconds}\n")


def test_suites_with_their_times_and_then_the_totals(tmp_path):
    write_suite(tmp_path, "unit", 0, 61)
    (tmp_path / "unit.xml").write_text(GOOGLETEST)
    write_suite(tmp_path, "format", 0, 2)
    result = run(tmp_path)
    unit, format, totals = result.stdout.splitlines()
    assert unit.split() == "unit 61 s 2 passed, 0 failed, 2 skipped".split()
    assert format.split() == "format 2 s 1 passed, 0 failed, 0 skipped".split()
    assert totals == "3 passed, 0 failed, 2 skipped"
    assert result.returncode == 0
    write_suite(tmp_path, "e2e", 1, 0)
    result = run(tmp_path)
    assert result.stdout.splitlines()[-1] == "3 passed, 1 failed, 2 skipped"
    assert result.returncode == 1


def test_nothing_run_is_a_failure(tmp_path):
    result = run(tmp_path)
    assert result.stdout == "0 passed, 0 failed, 0 skipped\n"
    assert result.returncode == 1
