#!/usr/bin/env bash
# The address and undefined-behaviour sanitizers over everything: the unit tests, then the end-to-end tests against a
# sanitized server.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

run_logged asan-configure "Configuring" cmake --preset asan
run_logged asan-build "Building" cmake --build --preset asan --parallel "$(nproc)"
ctest --preset asan
scripts/setup_deploy.sh # the end-to-end tests have Prometheus among them
# Left out are the tests that measure the server's memory, of which most would be the sanitizer's. Leaks at the end
# are looked for in the unit tests.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export BRAID_SERVER_BINARY=$PWD/build/asan/bin/braid-server
# The sanitizer's dlopen() does not look where the program says that its libraries are.
LD_LIBRARY_PATH=$(echo "$PWD"/.venv/lib/python3.*/site-packages/torch/lib)
export LD_LIBRARY_PATH
.venv/bin/python -m pytest -q tests/e2e --deselect e2e/test_memory.py \
  --deselect e2e/test_robustness.py::test_failed_requests_do_not_leak_memory \
  --deselect e2e/test_inference_robustness.py::test_client_killed_while_receiving_frees_its_slot \
  --deselect e2e/test_inference_robustness.py::test_ten_thousand_idle_connections \
  --deselect e2e/test_limits.py::test_bytes_in_flight_are_limited \
  --deselect e2e/test_load_unload.py::test_repeated_reloads_do_not_leak_memory \
  --deselect e2e/test_startup.py::test_idle_server_memory_is_small "$@"
