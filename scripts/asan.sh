#!/usr/bin/env bash
# The address and undefined-behaviour sanitizers over everything: the unit tests, then the end-to-end tests against a
# sanitized server.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

run_logged asan-configure "Configuring" cmake --preset asan
run_logged asan-build "Building" cmake --build --preset asan --parallel "$(nproc)"
ctest --preset asan
# What LibTorch, Python and gRPC leave at the end is theirs; what a server leaks while it runs the memory tests see.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export BRAID_SERVER_BINARY=$PWD/build/asan/bin/braid-server
.venv/bin/python -m pytest -q tests/e2e "$@"
