#!/usr/bin/env bash
# Puts what a container image needs of this checkout's build into a directory: the server and the
# command in bin/, in lib/ what the server needs of LibTorch and CUDA, in python/ the packages of the
# command, and the components of an SBOM that lists them.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage="usage: scripts/image_root.sh cpu|cuda DIRECTORY"
[[ $# == 2 && $1 =~ ^(cpu|cuda)$ ]] || { say "$usage" >&2 && exit 2; }
variant=$1
root=$(realpath -m "$2")
site=$(realpath "$venv"/lib/python3.*/site-packages)

# Prints the wheels' libraries that a program or library is linked to.
linked() { # FILE...
  ldd "$@" | sed -n 's|.* => \([^ ]*/site-packages/[^ ]*\) .*|\1|p'
}

libraries=()
if [[ $variant == cuda ]]; then
  libraries+=("$built"/lib/libbraid_cuda.so)
  # LibTorch, CUDA and AOTInductor packages load these at run time.
  libraries+=("$site"/torch/lib/lib{caffe2_nvrtc,torch,torch_cuda_linalg}.so)
  libraries+=("$site"/nvidia/cudnn/lib/libcudnn*.so.*)
  libraries+=("$site"/nvidia/cu13/lib/libnvrtc-builtins.so.*)
fi
mapfile -t needed < <(linked "$built/bin/braid-server" "${libraries[@]}")
# Lists each library once. Wheels contain no links.
mapfile -t libraries < <(realpath "${libraries[@]}" "${needed[@]}" | sort -u)

rm -rf "$root"
mkdir -p "$root/bin" "$root/lib" "$root/python"
cp "$built/bin/braid-server" "$root/bin/"
cp "${libraries[@]}" "$root/lib/"
if [[ $variant == cpu ]]; then
  # AOTInductor packages are linked to libtorch.so. It is linked to libtorch_cuda.so, which nothing here
  # uses.
  cp "$site/torch/lib/libtorch.so" "$root/lib/"
  cc -shared -Wl,-soname,libtorch_cuda.so -o "$root/lib/libtorch_cuda.so" -x c /dev/null
fi

# The interpreter of the image is Debian's, of the version that .venv has there.
packages=(click google/_upb google/protobuf grpc markdown_it mdurl numpy numpy.libs pygments rich
  typing_extensions.py)
(cd "$site" && cp -r --parents "${packages[@]}" "$root/python/")
cp -r client/python/braid "$root/python/"
find "$root/python" -name __pycache__ -prune -exec rm -r {} +
cat >"$root/bin/braid" <<'END'
#!/bin/sh
PYTHONPATH=/opt/braid/python exec /usr/bin/python3 -P -m braid "$@"
END
chmod +x "$root/bin/braid"

metadata=()
for name in click grpcio markdown_it_py mdurl numpy protobuf pygments rich typing_extensions; do
  metadata+=("$site/$name"-*.dist-info/METADATA)
done
PATH="$(cargo_folder):$PATH" "$venv/bin/python" scripts/image_components.py \
  "${libraries[@]}" "${metadata[@]}" \
  >"$root/wheels.json"
