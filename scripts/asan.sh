#!/usr/bin/env bash
# The address and undefined-behaviour sanitizers over everything: the unit tests, then the end-to-end tests against a
# sanitized server.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Tests that measure the server's memory, which would mostly be the sanitizer's.
excluded=(
  e2e/test_memory.py
  e2e/test_robustness.py::test_failed_requests_do_not_leak_memory
  e2e/test_inference_robustness.py::test_client_killed_while_receiving_frees_its_slot
  e2e/test_inference_robustness.py::test_memory_does_not_grow_with_requests
  e2e/test_inference_robustness.py::test_ten_thousand_idle_connections
  e2e/test_limits.py::test_bytes_in_flight_are_limited
  e2e/test_load_unload.py::test_repeated_reloads_do_not_leak_memory
  e2e/test_startup.py::test_idle_server_memory_is_small
)
# Tests that preload a library or need the CUDA plugin, which is not built here.
excluded+=(
  e2e/test_shutdown.py::test_threads_of_other_libraries_do_not_take_the_signal
  e2e/test_startup.py::test_auto_devices_log_unusable_gpus_and_use_the_cpu
  e2e/test_startup.py::test_unusable_gpu_is_rejected_with_the_drivers_reason
)

e2e() { # ARGUMENT...
  local rc=0
  .venv/bin/python -m pytest -q "${excluded[@]/#/--deselect=}" "$@" || rc=$?
  ((rc == 0 || rc == 5)) # 5: the options select no test
}

# pytest ignores an excluded test that does not exist.
check_excluded() { .venv/bin/python -m pytest -q --collect-only "${excluded[@]/#/tests/}"; }

run_logged asan-excluded "Looking for the excluded tests" check_excluded
run_logged asan-configure "Configuring" cmake --preset asan
run_logged asan-build "Building" cmake --build --preset asan --parallel "$(nproc)"
ctest --preset asan
scripts/setup_deploy.sh # the end-to-end tests have Prometheus among them
# Leaks at the end are looked for in the unit tests.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export BRAID_SERVER_BINARY=$PWD/build/asan/bin/braid-server
# The sanitizer's dlopen() does not look where the program says that its libraries are.
LD_LIBRARY_PATH=$(echo "$PWD"/.venv/lib/python3.*/site-packages/torch/lib)
export LD_LIBRARY_PATH
failed=no
# In groups of files, because the servers that tests share run until pytest ends, and each takes 1 GB.
for group in '[a-d]' '[e-h]' '[i-l]' '[m-r]' '[s-z]'; do
  files=(tests/e2e/test_$group*.py)
  e2e -n "$(test_workers)" --dist loadfile -m "not serial" "$@" "${files[@]}" || failed=yes
done
e2e -m serial "$@" tests/e2e || failed=yes
[[ $failed == no ]] || fail "the sanitized end-to-end tests failed"
