#!/usr/bin/env bash
# Checks formatting, includes, locking (clang's thread-safety analysis) and, with clang-tidy, everything
# else that a compiler lets pass. Runs all of it, then says what failed. Looks again only at what changed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

if (($#)); then
  say "usage: scripts/lint.sh" >&2
  exit 2
fi

# The objects of our own files: what protoc writes is compiled nowhere, its headers are made where one
# of ours includes them.
list_objects() {
  ninja -C build/tsa -t targets all | sed -n 's/^\([^:]*\.\(cc\|cxx\)\.o\): .*/\1/p' |
    grep -v '\.pb\.cc\.o$'
}

clang() {
  local objects
  mapfile -t objects < <(list_objects)
  ((${#objects[@]})) || fail "no C++ files in build/tsa"
  # All failures, not the first one only.
  ninja -C build/tsa -k 0 "${objects[@]}" || return 1
  say "clang: ${#objects[@]} objects"
}

failures=()
check() { # NAME COMMAND...
  local name=$1
  shift
  "$@" || failures+=("$name")
}

check format scripts/format.sh --check
check includes scripts/check_includes.py
run_logged lint-configure "Configuring for clang" cmake --preset tsa
check clang clang

((${#failures[@]} == 0)) || fail "lint failed: ${failures[*]}"
say "lint passed: format, includes, clang's thread-safety analysis and clang-tidy"
