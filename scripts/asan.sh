#!/usr/bin/env bash
# The address and undefined-behaviour sanitizers over everything: the unit tests, then the Python client's and the
# end-to-end tests against a sanitized server.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

run_logged asan-configure "Configuring" cmake --preset asan
run_logged asan-build "Building" cmake --build --preset asan --parallel "$(nproc)"
ctest --preset asan
