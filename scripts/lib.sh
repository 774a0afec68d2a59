# Shared functions of the scripts; sourced, not run. Changes to the root of the repository.
# shellcheck shell=bash
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The version of PyTorch that is built with, and where its wheels and the build are.
# shellcheck disable=SC2034
default_torch=2.15.0
TORCH=${TORCH:-$default_torch}
suffix=''
[[ $TORCH == "$default_torch" ]] || suffix=-$TORCH
venv=.venv$suffix
built=build/release$suffix

# Prints the versions of PyTorch that there are requirements for.
supported_torch() {
  local file versions=()
  for file in scripts/requirements/torch-*.txt; do
    file=${file##*/torch-}
    versions+=("${file%.txt}")
  done
  say "${versions[*]}"
}

say() { printf '%s\n' "$*"; }

# Prints an error and ends the script.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Prints the folder of the Cargo that the build uses.
cargo_folder() { dirname "$(sed -n 's/^BRAID_CARGO:FILEPATH=//p' "$built/CMakeCache.txt")"; }

# Rewrites one line with the seconds gone and the log's last line, until it is killed.
show_progress() { # LOG MESSAGE
  local start=$SECONDS width last
  while sleep 1; do
    width=$(($(tput cols 2>/dev/null || echo 80) - ${#2} - 12))
    last=$(tail -n 1 "$1" | tr -d '\r' | cut -c "1-$((width > 10 ? width : 10))")
    printf '\r\033[K%s %4d s  %s' "$2" $((SECONDS - start)) "$last"
  done
}

# Runs a command with its output in build/NAME.log; on failure shows the log's end and ends the
# script. On a terminal one line shows how far it is.
run_logged() { # NAME MESSAGE COMMAND...
  local log=build/$1.log message=$2 start=$SECONDS progress='' rc=0
  shift 2
  mkdir -p build
  : >"$log"
  if [[ -t 1 ]]; then
    show_progress "$log" "$message" &
    progress=$!
    # A terminal's Ctrl-C does not reach background jobs of a script.
    trap 'kill "$progress" 2>/dev/null || true' EXIT
  else
    say "$message (log: $log)"
  fi
  # Not `"$@" || rc=$?`, within which a function's own errors would not end it.
  set +e
  (set -e; "$@") >>"$log" 2>&1
  rc=$?
  set -e
  if [[ -n $progress ]]; then
    kill "$progress" 2>/dev/null || true
    wait "$progress" 2>/dev/null || true
    trap - EXIT
    printf '\r\033[K'
  fi
  if ((rc != 0)); then
    tail -n 40 "$log" >&2
    fail "$message: failed with status $rc; the whole log is $log"
  fi
  say "$message: done in $((SECONDS - start)) s"
}

# Prints the number of processes for tests that run in parallel. One more than cores, because tests
# also wait for servers and for timeouts.
test_workers() {
  local cores
  cores=$(nproc)
  say $((cores < 8 ? cores + 1 : 8))
}

# Prints our C++ files, those not yet added to git included.
list_cpp() {
  local file
  git ls-files --cached --others --exclude-standard -- '*.h' '*.cc' | sort -u |
    while read -r file; do [[ ! -f $file ]] || say "$file"; done
}
