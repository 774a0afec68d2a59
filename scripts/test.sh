#!/usr/bin/env bash
# Sets up, then runs every test and the quick checks of the house. Goes on after a failure; ends
# with the totals and a status of 1 if anything failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if (($#)); then
  say "usage: scripts/test.sh" >&2
  exit 2
fi
scripts/setup.sh

results=build/test-results
rm -rf "$results"
mkdir -p "$results"

# Runs a suite and notes its status; its JUnit file, if it writes one, is RESULTS/NAME.xml.
suite() { # NAME COMMAND...
  local name=$1 rc=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || rc=$?
  printf '%d\n' "$rc" >"$results/$name.status"
}

# Ends a suite that hangs with SIGINT, for pytest's fixtures to stop the servers that they started.
limited() { timeout --foreground --signal=INT --kill-after=60 1800 "$@"; }

python_suite() { # NAME PATH...
  suite "$1" limited .venv/bin/python -m pytest -q -rs --junitxml="$results/$1.xml" "${@:2}"
}

unit_suite() { # NAME
  suite "$1" limited "build/release/bin/$1" --gtest_brief=1 --gtest_output="xml:$results/$1.xml"
}

# Checks that the generated files are up to date.
check_generated() {
  local file made
  for file in $(scripts/generate.sh --list); do
    made=$PWD/$results/${file##*/}
    scripts/generate.sh "$file" "$made" && cmp "$file" "$made" || return
  done
  say "generate.sh: up to date"
}

suite format scripts/format.sh --check
suite includes scripts/check_includes.py
suite generated check_generated
suite protocol .venv/bin/python scripts/check_protocol.py
suite docs limited scripts/docs.sh
python_suite scripts scripts
for program in build/release/bin/*_test; do
  unit_suite "${program##*/}"
done
python_suite python client/python/tests
# The end-to-end tests have Prometheus among them.
suite deploy-tools limited scripts/setup_deploy.sh
python_suite e2e tests/e2e
PYTHONPATH=.venv/tritonclient-2.49.0 \
  python_suite tritonclient-2.49.0 tests/e2e/test_tritonclient_*.py
python_suite gpu tests/gpu
python_suite deploy tests/deploy

printf '\n'
exec scripts/count_tests.py "$results"
