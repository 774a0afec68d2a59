#!/usr/bin/env bash
# Writes the files of this repository that are generated and kept under version control:
#   client/python/braid/protocol.binpb   every proto file and its imports, as a serialized
#                                        FileDescriptorSet, from which the Python package makes its
#                                        messages and methods; needs protoc (Debian:
#                                        protobuf-compiler)
#   docs/reference/metrics.md            every metric, from the tables in server/telemetry/; needs
#                                        the programs that `cmake --build --preset release` builds
#   docs/reference/protocol.md           the protocol braid.v1, from the comments in proto/
#   docs/reference/python.md             the Python API, from its docstrings
# The same sources give the same bytes. Only at a release, and only if named:
#   proto/released/braid_v1.binpb        the descriptors of braid.v1, with which
#                                        scripts/check_protocol.py compares later ones
#
# Usage: scripts/generate.sh --list            prints the names of the files
#        scripts/generate.sh [FILE [OUTPUT]]   writes all files, or one of them, or it to OUTPUT
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
files=(
  client/python/braid/protocol.binpb
  docs/reference/metrics.md
  docs/reference/protocol.md
  docs/reference/python.md
)
released=proto/released/braid_v1.binpb

fail() {
  printf 'generate.sh: %s\n' "$*" >&2
  exit 1
}

# Prints the descriptors of all proto files of a folder.
descriptors() { # FOLDER [OPTION]
  command -v protoc > /dev/null ||
    fail "protoc is missing; on Debian and Ubuntu: apt-get install protobuf-compiler"
  local protos
  mapfile -t protos < <(cd "$root/proto" && find "$1" -name '*.proto' | LC_ALL=C sort)
  protos=("${protos[@]#./}")
  (cd "$root/proto" &&
    protoc --proto_path=. "${@:2}" --descriptor_set_out=/dev/stdout "${protos[@]}")
}

run_python() {
  [[ -x $root/.venv/bin/python ]] || fail ".venv is missing: run scripts/setup.sh first"
  "$root/.venv/bin/python" "$@"
}

print_metrics() {
  local program=$root/build/release/bin/braid-metrics-doc
  [[ -x $program ]] || fail "$program is missing: build the preset release first"
  "$program"
}

generate() { # FILE [OUTPUT]
  local output=${2:-$root/$1}
  [[ " ${files[*]} $released " == *" $1 "* ]] ||
    fail "unknown file '$1' (expected one of: ${files[*]} $released)"
  case $1 in
    # Sorted names, no source info: the bytes depend on nothing but what the files declare.
    */protocol.binpb) descriptors . --include_imports ;;
    "$released") descriptors braid/v1 ;;
    */metrics.md) print_metrics ;;
    */protocol.md) descriptors . --include_source_info | run_python "$root/scripts/document_protocol.py" ;;
    */python.md) run_python "$root/scripts/document_python.py" ;;
  esac > "$output.tmp"
  mv "$output.tmp" "$output"
}

if [[ ${1-} == --list ]]; then
  printf '%s\n' "${files[@]}"
elif (($#)); then
  generate "$@"
else
  for file in "${files[@]}"; do
    generate "$file"
  done
fi
