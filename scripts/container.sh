#!/usr/bin/env bash
# Makes the container image of this checkout's build and tests it, as root, without a registry and
# without a daemon: about a minute, and several for cuda. Not part of scripts/test.sh.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
  cat <<'END'
usage: scripts/container.sh [cpu|cuda]

The image is called localhost/braid:VARIANT and takes build/release as it is; `docker build` builds
all of it, from deploy/docker/Dockerfile. It wants Debian's packages buildah, crun, mmdebstrap
and netavark.
END
}

variant=${1:-cpu}
case $variant in
  cpu | cuda) ;;
  --help | -h) usage && exit ;;
  *) usage >&2 && exit 2 ;;
esac
(($# <= 1)) || { usage >&2 && exit 2; }
for program in buildah mmdebstrap; do
  command -v "$program" >/dev/null || fail "no $program: apt-get install buildah crun mmdebstrap netavark"
done

pinned=$(sed -n 's/^ARG BASE=//p' deploy/docker/Dockerfile)
base=localhost/braid-base:${pinned##*:}
builder=localhost/braid-built:$variant
image=localhost/braid:$variant
work=build/container
export BUILDAH_ISOLATION=chroot
version=$(sed -n 's/^appVersion: *//p' deploy/helm/braid/Chart.yaml)

# Makes an image from another one or from `scratch`, with the content of a file or directory.
make_image() { # NAME FROM SOURCE DESTINATION
  local container
  container=$(buildah from --pull-never "$2")
  buildah add --quiet "$container" "$3" "$4"
  buildah commit --quiet --rm "$container" "$1"
}

# Uses the base images of the Dockerfile, or replacements if no registry is reachable.
make_base() {
  if buildah pull --policy=missing "$pinned"; then
    buildah tag "$pinned" "$base"
    return
  fi
  mmdebstrap --variant=minbase bookworm "$work/base.tar"
  make_image "$base" scratch "$work/base.tar" /
  rm "$work/base.tar"
}

make_built() {
  scripts/image_root.sh "$variant" "$work/braid"
  make_image "$builder" "$base" "$work/braid" /braid
}

scripts/setup.sh
mkdir -p "$work"
buildah inspect --type image "$base" >/dev/null 2>&1 || run_logged container-base "Making the base" make_base
run_logged container-built "Collecting what was built" make_built
run_logged container-image "Making the image" buildah bud --pull-never \
  --file deploy/docker/Dockerfile --build-arg "BASE=$base" --build-arg "BUILDER=$builder" \
  --build-arg "VERSION=$version" --tag "$image" .
BRAID_IMAGE=$image .venv/bin/python -m pytest -q tests/container
say "The image is $image; its SBOM is /opt/braid/sbom.cdx.json in it"
