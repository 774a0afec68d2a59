#!/usr/bin/env bash
# Puts what a container image needs of this checkout's build into a directory: bin/, and in lib/ what
# those programs need of LibTorch and CUDA, with the components of an SBOM that lists them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage="usage: scripts/image_root.sh cpu|cuda DIRECTORY"
[[ $# == 2 && $1 =~ ^(cpu|cuda)$ ]] || { say "$usage" >&2 && exit 2; }
variant=$1
root=$2
site=$(realpath "$venv"/lib/python3.*/site-packages)

# Prints the wheels' libraries that a program or library is linked to.
linked() { # FILE...
  ldd "$@" | sed -n 's|.* => \([^ ]*/site-packages/[^ ]*\) .*|\1|p'
}

programs=("$built"/bin/braid-server "$built"/bin/braid)
libraries=()
if [[ $variant == cuda ]]; then
  libraries+=("$built"/lib/libbraid_cuda.so)
  # LibTorch, CUDA and AOTInductor packages load these at run time.
  libraries+=("$site"/torch/lib/lib{caffe2_nvrtc,torch,torch_cuda_linalg}.so)
  libraries+=("$site"/nvidia/cudnn/lib/libcudnn*.so.*)
  libraries+=("$site"/nvidia/cu13/lib/libnvrtc-builtins.so.*)
fi
mapfile -t needed < <(linked "${programs[@]}" "${libraries[@]}")
# Lists each library once. Wheels contain no links.
mapfile -t libraries < <(realpath "${libraries[@]}" "${needed[@]}" | sort -u)

rm -rf "$root"
mkdir -p "$root/bin" "$root/lib"
cp "${programs[@]}" "$root/bin/"
cp "${libraries[@]}" "$root/lib/"
if [[ $variant == cpu ]]; then
  # AOTInductor packages are linked to libtorch.so. It is linked to libtorch_cuda.so, which nothing here
  # uses.
  cp "$site/torch/lib/libtorch.so" "$root/lib/"
  cc -shared -Wl,-soname,libtorch_cuda.so -o "$root/lib/libtorch_cuda.so" -x c /dev/null
fi
"$venv/bin/python" scripts/image_components.py "${libraries[@]}" >"$root/wheels.json"
