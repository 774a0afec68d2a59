#!/usr/bin/env bash
# Writes the files of this repository that are made from others and kept under version control:
#   client/python/braid/protocol.binpb   every proto file and what it imports, as a serialized
#                                        FileDescriptorSet, from which the Python package makes
#                                        its messages and methods; needs protoc (Debian:
#                                        protobuf-compiler)
#   docs/metrics.md                      every metric, from the tables in server/telemetry/; needs
#                                        what `cmake --build --preset release` builds
# The same sources give the same bytes. Only at a release, and only if named:
#   proto/released/braid_v1.binpb        the descriptors of braid.v1, with which
#                                        scripts/check_protocol.py compares later ones
#
# Usage: scripts/generate.sh [FILE [OUTPUT]]   one of them alone; into OUTPUT in its place
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
protocol=client/python/braid/protocol.binpb
metrics=docs/metrics.md
released=proto/released/braid_v1.binpb

fail() {
  printf 'generate.sh: %s\n' "$*" >&2
  exit 1
}

# Prints the descriptors of all proto files of a folder.
make_descriptors() { # FOLDER [OPTION]
  command -v protoc > /dev/null ||
    fail "protoc is missing; on Debian and Ubuntu: apt-get install protobuf-compiler"
  local protos
  mapfile -t protos < <(cd "$root/proto" && find "$1" -name '*.proto' | LC_ALL=C sort)
  protos=("${protos[@]#./}")
  # Sorted names, no source info: the bytes depend on what the files say and on nothing else.
  (cd "$root/proto" &&
    protoc --proto_path=. "${@:2}" --descriptor_set_out=/dev/stdout "${protos[@]}")
}

make_metrics() {
  local program=$root/build/release/bin/braid-metrics-doc
  [[ -x $program ]] || fail "$program is missing: build the preset release first"
  "$program"
}

generate() { # FILE [OUTPUT]
  local make output=${2:-$root/$1}
  case $1 in
    "$protocol") make=(make_descriptors . --include_imports) ;;
    "$metrics") make=(make_metrics) ;;
    "$released") make=(make_descriptors braid/v1) ;;
    *) fail "'$1' is none of the files that are made: expected $protocol, $metrics or $released" ;;
  esac
  "${make[@]}" > "$output.tmp"
  mv "$output.tmp" "$output"
}

if (($#)); then
  generate "$@"
else
  generate "$protocol"
  generate "$metrics"
fi
