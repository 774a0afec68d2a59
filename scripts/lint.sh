#!/usr/bin/env bash
# Checks formatting, includes, locking (clang's thread-safety analysis) and, with clang-tidy, the
# files that differ from origin/HEAD. Runs all of it, then says what failed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
  cat <<'END'
usage: scripts/lint.sh [--all]

  --all  clang-tidy on every file (about 10 s a file) instead of the changed ones
END
}

# Prints the C++ files that differ from where this branch left origin/HEAD; all of them where there
# is no such branch. For a header its .cc is what clang-tidy can check.
changed_cpp() {
  local base file
  if ! base=$(git merge-base HEAD origin/HEAD 2>/dev/null); then
    list_cpp
    return
  fi
  { git diff --name-only "$base" -- '*.h' '*.cc' &&
    git ls-files --others --exclude-standard -- '*.h' '*.cc'; } |
    sed 's/\.h$/.cc/' | sort -u |
    while read -r file; do [[ ! -f $file ]] || say "$file"; done
}

# Makes build/tsa/compile_commands.json, and the headers that protoc generates.
prepare_clang() {
  cmake --preset tsa
  local headers
  mapfile -t headers < <(ninja -C build/tsa -t targets all | sed -n 's/^\([^:]*\.pb\.h\):.*/\1/p')
  ninja -C build/tsa "${headers[@]}"
}

failures=()
check() { # NAME COMMAND...
  local name=$1
  shift
  "$@" || failures+=("$name")
}

tidy=changed
case ${1:-} in
  '') ;;
  --all) tidy=all ;;
  --help | -h) usage && exit ;;
  *) usage >&2 && exit 2 ;;
esac

check format scripts/format.sh --check
check includes scripts/check_includes.py
run_logged lint-configure "Configuring for clang" prepare_clang
mapfile -t all < <(list_cpp)
check thread-safety scripts/run_clang.py thread-safety build/tsa "${all[@]}"
mapfile -t tidied < <(if [[ $tidy == all ]]; then list_cpp; else changed_cpp; fi)
check clang-tidy scripts/run_clang.py tidy build/tsa "${tidied[@]}"

((${#failures[@]} == 0)) || fail "lint failed: ${failures[*]}"
say "lint passed: format, includes, thread-safety, clang-tidy ($tidy files)"
