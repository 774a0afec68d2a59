#!/usr/bin/env bash
# Sets up, then runs the checks of the sources and every test. Continues after a failure. Prints the
# time of each suite and the totals; exits with 1 if anything failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
  cat <<'END'
usage: scripts/test.sh [--quick]

  --quick  for the edit loop: a selection of the Python and end-to-end tests, without the tests of
           deploy/ and of the documentation; at most 3 minutes on a built tree
END
}

# The files of --quick: together two minutes on one core.
quick_python=(
  client/python/tests/test_{client,download,errors,evaluate,options,protocol,replay}.py
  client/python/tests/test_{restarts,retries,security,specs,state_dict,sync,tensors}.py
  client/python/tests/test_{trainer,wire}.py
  client/python/tests/exporter/test_{check_command,hooks,layout}.py
)
quick_e2e=(
  tests/e2e/test_{access,errors_inference,errors_training,gradients,inference}.py
  tests/e2e/test_{startup,stream,tritonclient_api,wire}.py
  -k "not aot and not exported" # Compiling the models takes a minute.
)

quick=no
case ${1:-} in
  '') ;;
  --quick) quick=yes ;;
  --help | -h) usage && exit ;;
  *) usage >&2 && exit 2 ;;
esac
scripts/setup.sh

results=build/test-results
rm -rf "$results"
mkdir -p "$results"
workers=$(test_workers)

# Runs a suite and records its status and its seconds. Its JUnit file, if any, is RESULTS/NAME.xml.
suite() { # NAME COMMAND...
  local name=$1 rc=0 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@" || rc=$?
  printf '%d\n' "$rc" >"$results/$name.status"
  printf '%d\n' $((SECONDS - start)) | tee "$results/$name.seconds" | sed "s/.*/$name: & s/"
}

# Seconds for one Python test with its fixtures. The first test of a file may export all models.
test_limit=480

# Interrupts a suite that hangs, so that pytest's fixtures stop their servers.
limited() { timeout --foreground --signal=INT --kill-after=60 1800 "$@"; }

python_suite() { # NAME OPTION-OR-PATH...
  suite "$1" limited .venv/bin/python -m pytest -q -rs --timeout="$test_limit" \
    --junitxml="$results/$1.xml" "${@:2}"
}

# Runs test files in parallel processes.
parallel_suite() { # NAME OPTION-OR-PATH...
  python_suite "$1" -n "$workers" --dist loadfile "${@:2}"
}

unit_suites() {
  local program name
  for program in build/release/bin/*_test; do
    name=${program##*/}
    suite "$name" limited "$program" --gtest_brief=1 --gtest_output="xml:$results/$name.xml"
  done
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

check_suites() {
  suite format scripts/format.sh --check
  suite includes scripts/check_includes.py
  suite generated check_generated
  suite protocol .venv/bin/python scripts/check_protocol.py
}

# In the background, because most of these use one core.
{ check_suites; unit_suites; } >"$results/checks.log" 2>&1 &
# A script's background jobs ignore Ctrl-C.
trap "kill $! 2>/dev/null || true" EXIT
if [[ $quick == yes ]]; then
  python_suite python "${quick_python[@]}"
  python_suite e2e "${quick_e2e[@]}"
else
  suite docs limited scripts/docs.sh
  PATH=$(cargo_folder):$PATH python_suite scripts scripts
  python_suite gpu tests/gpu
  PYTHONPATH=.venv/tritonclient-2.49.0 \
    python_suite tritonclient-2.49.0 tests/e2e/test_tritonclient_*.py
  # The end-to-end tests use Prometheus.
  suite deploy-tools limited scripts/setup_deploy.sh
fi
wait
cat "$results/checks.log"
if [[ $quick == no ]]; then
  parallel_suite python client/python/tests
  parallel_suite e2e -m "not serial" tests/e2e
  python_suite e2e-serial -m serial tests/e2e
  parallel_suite deploy tests/deploy
fi

printf '\n'
exec scripts/count_tests.py "$results"
