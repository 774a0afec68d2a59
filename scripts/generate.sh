#!/usr/bin/env bash
# Writes the files of this repository that are made from proto/ and kept under version control:
#   client/python/braid/protocol.binpb   every proto file and what it imports, as a serialized
#                                        FileDescriptorSet, from which the Python package makes
#                                        its messages and methods
# The same proto files give the same bytes. Needs protoc (Debian: protobuf-compiler).
#
# Usage: scripts/generate.sh [OUTPUT]   writes OUTPUT in place of protocol.binpb
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=${1:-$root/client/python/braid/protocol.binpb}

if ! command -v protoc > /dev/null; then
  echo "generate.sh: protoc is missing; on Debian and Ubuntu: apt-get install protobuf-compiler" >&2
  exit 1
fi

cd "$root/proto"
mapfile -t protos < <(find . -name '*.proto' -printf '%P\n' | LC_ALL=C sort)
# Sorted names, no source info: the bytes depend on what the files say and on nothing else.
protoc --proto_path=. --include_imports --descriptor_set_out="$output.tmp" "${protos[@]}"
mv "$output.tmp" "$output"
