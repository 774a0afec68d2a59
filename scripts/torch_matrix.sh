#!/usr/bin/env bash
# Builds Braid with other versions of PyTorch than the default, and runs the unit tests and a part of
# the end-to-end tests on each.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
  cat <<END
usage: scripts/torch_matrix.sh [VERSION...]

VERSION is one of: $(supported_torch) (default: all but $default_torch)
END
}

# Tests that depend on LibTorch most: formats, training, publishing, upgrades and failures.
e2e_tests=(
  aoti
  exported_programs
  inference
  interpreter
  losses
  models_nobody_wrote
  non_finite
  optimizers
  placement
  precision
  publish
  randomness
  row_independence
  sync_batch_norm
  training
  tritonclient_api
  upgrade
)

# Runs the tests of one build. Prints what failed, and returns 1 then.
test_build() { # VERSION
  local venv=.venv-$1 built=build/release-$1 failed=() program
  for program in "$built"/bin/*_test; do
    "$program" --gtest_brief=1 || failed+=("${program##*/}")
  done
  BRAID_SERVER_BINARY=$PWD/$built/bin/braid-server "$venv/bin/python" -m pytest -q -rs \
    "${e2e_tests[@]/%/.py}" || failed+=(e2e)
  if ((${#failed[@]})); then
    say "PyTorch $1: failed: ${failed[*]}"
    return 1
  fi
  say "PyTorch $1: all tests passed"
}

[[ ${1:-} != --help && ${1:-} != -h ]] || { usage && exit; }
versions=("$@")
if ((!$#)); then
  mapfile -t versions < <(supported_torch | tr ' ' '\n' | grep -vxF "$default_torch")
fi
e2e_tests=("${e2e_tests[@]/#/tests/e2e/test_}")
status=0
for version in "${versions[@]}"; do
  [[ $version != "$default_torch" ]] || fail "$version is the default: scripts/test.sh tests it"
  TORCH=$version scripts/setup.sh
  test_build "$version" || status=1
done
exit "$status"
