#!/usr/bin/env bash
# The thread sanitizer over the engine's tests. The distribution's Abseil is not instrumented, which gives false
# reports, so Abseil is built here from the distribution's own source package, and what links gRPC is left out.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

source_dir=build/abseil-source

# Fetches the source package that belongs to the installed libabsl-dev, with package lists of its own: the
# machine's stay as they are.
fetch_abseil() {
  local state=$PWD/build/apt-source
  mkdir -p "$state/lists/partial" "$state/download"
  : >"$state/sources.list"
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list 2>/dev/null >>"$state/sources.list" || true
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ ! -e $file ]] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$state/${file##*/}"
  done
  local apt=(apt-get -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts="$state"
    -o Dir::State::Lists="$state/lists")
  "${apt[@]}" update
  local version
  version=$(dpkg-query --show --showformat '${source:Version}' libabsl-dev)
  (cd "$state/download" && "${apt[@]}" source --download-only "abseil=$version")
  rm -rf "$source_dir"
  dpkg-source --no-check -x "$state"/download/abseil_*.dsc "$source_dir"
}

[[ -f $source_dir/CMakeLists.txt ]] || run_logged tsan-abseil "Fetching Abseil's source" fetch_abseil
run_logged tsan-configure "Configuring" cmake --preset tsan -DBRAID_ABSEIL_SOURCE="$PWD/$source_dir"
run_logged tsan-build "Building" cmake --build --preset tsan --parallel "$(nproc)"
ctest --preset tsan "$@"
