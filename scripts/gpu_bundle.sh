#!/usr/bin/env bash
# Makes an archive that scripts/gpu_check.sh runs on another machine, one with a GPU but without a
# network and without Braid's dependencies.
set -euo pipefail
TORCH=${TORCH:-2.11.0}
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

max_mib=48
usage() {
  cat <<END
usage: scripts/gpu_bundle.sh [--python VERSION] [FILE]

  --python VERSION  Python of the other machine (default: 3.12)
  FILE              is replaced (default: build/gpu-bundle.tar.xz); at most $max_mib MiB

The other machine needs x86-64, a GPU with its driver, a C++ compiler for the tests that compile
models, and a Python with NumPy and the PyTorch for CUDA that the server was built with. The bundle
has:

  braid-server, braid-bench-load
                 run the programs in bin/ with the libraries of the machine's PyTorch
  bin/, lib/     the server, its GPU plugin, the benchmarks' C++ client, and the system libraries
                 that they need
  packages/      Python packages that the tests need

environment:
  TORCH          build to take: build/release-VERSION (default: 2.11.0)
END
}

python=3.12
archive=build/gpu-bundle.tar.xz
while (($#)); do
  case $1 in
    --python)
      python=${2:?--python: needs a version}
      shift
      ;;
    --help | -h) usage && exit ;;
    -*) usage >&2 && exit 2 ;;
    *) archive=$1 ;;
  esac
  shift
done

# The client uses no PyTorch, and only the build with the default version has it.
client=build/release/bin/braid-bench-load
[[ -f $client ]] || fail "$client is missing: run scripts/setup.sh"
programs=("$built/bin/braid-server" "$built/lib/libbraid_cuda.so")
for program in "${programs[@]}"; do
  [[ -f $program ]] || fail "$program is missing: run TORCH=$TORCH scripts/setup.sh"
done
programs+=("$client")

# Prints the libraries that files need, without those of PyTorch's wheels, glibc and the compiler's
# runtime. PyTorch needs the last two as well.
system_libraries() { # FILE...
  ldd "$@" | sed -n 's|.* => \(/[^ ]*\) (.*|\1|p' | sort -u |
    grep -vE '/site-packages/(torch|nvidia)/' |
    grep -vE '/(lib(c|m|dl|pthread|rt|util|resolv|gcc_s)\.so\.|libstdc\+\+\.so\.)'
}

# Prints the packages that tests/gpu imports, and what those need, with their pinned versions.
requirements() {
  local names=(grpcio grpcio-health-checking grpcio-reflection iniconfig packaging pluggy protobuf
    Pygments pytest python-rapidjson setuptools tritonclient)
  cat scripts/requirements/{common,"torch-$TORCH"}.txt |
    sed 's/\[grpc\]//' | grep -E "^($(IFS='|' && echo "${names[*]}"))=="
}

install_packages() { # DIRECTORY
  local wanted platforms=() tag
  mapfile -t wanted < <(requirements)
  for tag in 2_28 2_27 2_24 2_17 2014 1; do
    platforms+=(--platform "manylinux${tag/#2_/_2_}_x86_64")
  done
  "$venv/bin/python" -m pip install --no-input --quiet --disable-pip-version-check --no-compile \
    --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
    "${platforms[@]}" --target "$1" "${wanted[@]}"
  rm -rf "${1:?}/bin" # Programs, such as tritonclient's perf_analyzer.
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/bundle
mkdir -p "$bundle"/{bin,lib,packages}
mapfile -t libraries < <(system_libraries "${programs[@]}")
strip -o "$bundle/bin/braid-server" "$built/bin/braid-server"
strip -o "$bundle/bin/braid-bench-load" "$client"
strip -o "$bundle/lib/libbraid_cuda.so" "$built/lib/libbraid_cuda.so"
cp -L "${libraries[@]}" "$bundle/lib/"
for name in braid-server braid-bench-load; do
  cp scripts/bundled_program.sh "$bundle/$name"
done
install_packages "$bundle/packages"
say "$TORCH $python" >"$bundle/versions"
tar -C "$bundle" -c . | xz -4 --threads="$(nproc)" >"$archive"

size=$(du -s --apparent-size --block-size=1M "$archive" | cut -f 1)
((size <= max_mib)) || fail "$archive: $size MiB (expected at most $max_mib MiB)"
say "$archive: $size MiB, for PyTorch $TORCH and Python $python"
