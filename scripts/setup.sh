#!/usr/bin/env bash
# Prepares a bare Debian 12 or Ubuntu 24.04 machine and builds Braid: system packages, .venv with
# pinned wheels and the command braid, configure, build. Does only what is missing; run it again at
# any time, also after an interruption.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage() {
  cat <<END
usage: scripts/setup.sh [--no-packages] [TARGET...]

  --no-packages  install no system packages: for a system without apt, or with its own gRPC and
                 compilers (scripts/packages.txt lists the packages)
  TARGET         build only these targets (default: everything, with the unit tests and benchmarks)

environment:
  PYTHON         Python 3.11 or 3.12 for .venv (default: /usr/bin/python3)
  TORCH          version of PyTorch to build with (default: $default_torch). Other versions use
                 .venv-VERSION and build/release-VERSION, without the benchmarks.
                 Supported: $(supported_torch)
END
}

requirements=(scripts/requirements/{"torch-$TORCH",common,tritonclient-2.49.0}.txt)
venv_stamp=$venv/.braid-requirements
venv_unfinished=$venv/.braid-unfinished
configured=$built/.braid-configured

worked=no
work() { # as run_logged
  worked=yes
  run_logged "$@"
}

# Prints the package with Cargo, unless one is installed that is new enough for the tokenizers.
missing_cargo() {
  local wanted cargo version
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' server/decode/tokenizers/Cargo.toml)
  for cargo in cargo "/usr/lib/rust-$wanted/bin/cargo" ~/.cargo/bin/cargo; do
    version=$("$cargo" --version 2>/dev/null | cut -d ' ' -f 2) || true
    [[ $(printf '%s\n' "$wanted" "$version" | sort -V | head -n 1) != "$wanted" ]] || return 0
  done
  # The package `cargo` of both systems is older.
  if grep -q '^ID=ubuntu$' /etc/os-release; then
    say "cargo-$wanted"
  else
    say cargo-web
  fi
}

# Prints the packages of scripts/packages.txt that are not installed.
missing_packages() {
  local wanted installed
  wanted=$(sed -e '/^#/d' -e '/^$/d' scripts/packages.txt | sort)
  # dpkg-query fails when it knows nothing of a package; that is what is asked here.
  # shellcheck disable=SC2086
  installed=$(dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' $wanted \
    2>/dev/null | sed -n 's/ installed$//p' | sort -u) || true
  comm -23 <(printf '%s\n' "$wanted") <(printf '%s\n' "$installed")
  missing_cargo
}

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  dpkg --configure -a # what an interrupted installation left
  apt-get update
  apt-get install --yes --no-install-recommends "$@"
}

install_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "no apt on this system: install what scripts/packages.txt lists by other means," \
      "then run scripts/setup.sh --no-packages"
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    say "These system packages are missing. Install them, then run this script again:"
    say "  sudo apt-get update && sudo apt-get install --yes --no-install-recommends ${missing[*]}"
    exit 1
  fi
  work setup-packages "Installing ${#missing[@]} system packages" apt_install "${missing[@]}"
}

# Prints what the virtual environment must hold: its interpreter's version and the requirements.
venv_fingerprint() {
  local version
  version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    return 1
  printf '%s %s\n' "$version" "$(cat "${requirements[@]}" | sha256sum)"
}

fill_venv() { # PYTHON
  # The mark stays if what follows is interrupted: pip takes a half-copied package for a whole one.
  mkdir -p "$venv"
  touch "$venv_unfinished"
  # An existing one keeps its interpreter.
  [[ -x $venv/bin/python ]] || "$1" -m venv "$venv"
  local install=("$venv/bin/python" -m pip install --no-input --progress-bar off
    --disable-pip-version-check)
  "${install[@]}" -r "${requirements[0]}"
  "${install[@]}" --no-deps --target "$venv/tritonclient-2.49.0" -r "${requirements[2]}"
  venv_fingerprint >"$venv_stamp"
  rm "$venv_unfinished"
}

make_venv() {
  local python=${PYTHON:-/usr/bin/python3} wanted
  if [[ ! -e $venv_unfinished && -e $venv_stamp ]] && wanted=$(venv_fingerprint) &&
    [[ $wanted == "$(<"$venv_stamp")" ]]; then
    return
  fi
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' ||
    fail "the wheels are pinned for Python 3.11 and 3.12, $python is $("$python" --version 2>&1):" \
      "name another with PYTHON=/path/to/python3.12 scripts/setup.sh"
  if [[ -e $venv_unfinished ]] || ! venv_fingerprint >/dev/null; then
    rm -rf "$venv"
  fi
  work "setup-venv$suffix" "Installing the Python wheels (5 GB)" fill_venv "$python"
}

# Makes `import braid` and the command `braid` of this checkout available in .venv. Both find the
# checkout from their own place, so that a copy of the checkout uses its own code.
install_client() {
  echo ../../../../client/python >"$(echo "$venv"/lib/python3.*/site-packages)/braid.pth"
  cat >"$venv/bin/braid" <<'END'
#!/bin/sh
# The command braid of the checkout.
exec "$(dirname "$(readlink -f "$0")")/python" -P -m braid "$@"
END
  chmod +x "$venv/bin/braid"
}

configure() {
  if [[ -f $built/build.ninja && $configured -nt CMakePresets.json &&
    $configured -nt $venv_stamp ]]; then
    return
  fi
  work "setup-configure$suffix" "Configuring" \
    cmake --preset release -B "$built" -DBRAID_VENV="$PWD/$venv" \
    -DBRAID_BUILD_BENCH="$([[ -n $suffix ]] && echo OFF || echo ON)"
  touch "$configured"
}

build() { # TARGET...
  # Stays silent if there is nothing to build.
  if [[ $(ninja -C "$built" -n "$@" 2>&1 | tail -n 1) == "ninja: no work to do." ]]; then
    return
  fi
  work "setup-build$suffix" "Building" ninja -C "$built" -j "$(nproc)" "$@"
}

packages=yes
case ${1:-} in
  --no-packages)
    packages=no
    shift
    ;;
  --help | -h) usage && exit ;;
esac
for target in "$@"; do
  [[ $target != -* ]] || { usage >&2 && exit 2; }
done
[[ -f ${requirements[0]} ]] ||
  fail "TORCH=$TORCH: unsupported version (expected one of: $(supported_torch))"
mkdir -p build
exec 9>build/.setup.lock
flock --nonblock 9 || { say "Another setup is at work: waiting for it" && flock 9; }

started=$SECONDS
{
  [[ $packages == no ]] || install_packages
  make_venv
  install_client
  configure
  build "$@"
} 9>&- # a service that apt starts must not inherit the lock
if [[ $worked == yes ]]; then
  say "Setup done in $((SECONDS - started)) s: braid-server is in $built/bin, braid in $venv/bin"
else
  say "Setup: nothing to do, $built/bin is up to date"
fi
