#!/usr/bin/env bash
# Writes the files of this repository that are made from others and kept under version control:
#   client/python/braid/protocol.binpb   every proto file and what it imports, as a serialized
#                                        FileDescriptorSet, from which the Python package makes
#                                        its messages and methods; needs protoc (Debian:
#                                        protobuf-compiler)
#   docs/metrics.md                      every metric, from the tables in server/telemetry/; needs
#                                        what `cmake --build --preset release` builds
# The same sources give the same bytes.
#
# Usage: scripts/generate.sh [FILE [OUTPUT]]   one of them alone; into OUTPUT in its place
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
protocol=client/python/braid/protocol.binpb
metrics=docs/metrics.md

fail() {
  printf 'generate.sh: %s\n' "$*" >&2
  exit 1
}

make_protocol() {
  command -v protoc > /dev/null ||
    fail "protoc is missing; on Debian and Ubuntu: apt-get install protobuf-compiler"
  local protos
  mapfile -t protos < <(cd "$root/proto" && find . -name '*.proto' -printf '%P\n' | LC_ALL=C sort)
  # Sorted names, no source info: the bytes depend on what the files say and on nothing else.
  (cd "$root/proto" &&
    protoc --proto_path=. --include_imports --descriptor_set_out=/dev/stdout "${protos[@]}")
}

make_metrics() {
  local program=$root/build/release/bin/braid-metrics-doc
  [[ -x $program ]] || fail "$program is missing: build the preset release first"
  "$program"
}

generate() { # FILE [OUTPUT]
  local make output=${2:-$root/$1}
  case $1 in
    "$protocol") make=make_protocol ;;
    "$metrics") make=make_metrics ;;
    *) fail "'$1' is none of the files that are made: expected $protocol or $metrics" ;;
  esac
  "$make" > "$output.tmp"
  mv "$output.tmp" "$output"
}

if (($#)); then
  generate "$@"
else
  generate "$protocol"
  generate "$metrics"
fi
