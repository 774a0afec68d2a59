#!/usr/bin/env bash
# Formats the C++ of this repository in place; with --check only says what is not formatted.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

case ${1:-} in
  '') options=(-i) ;;
  --check) options=(--dry-run -Werror) ;;
  *) say "usage: scripts/format.sh [--check]" >&2 && exit 2 ;;
esac
formatter=$(command -v clang-format-16) || fail "no clang-format-16: run scripts/setup.sh"
mapfile -t files < <(list_cpp)
((${#files[@]})) || fail "no C++ files found"
"$formatter" --style=file "${options[@]}" "${files[@]}"
say "clang-format: ${#files[@]} files"
