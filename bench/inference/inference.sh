#!/usr/bin/env bash
# Compares inference through the server with PyTriton, a bare LibTorch loop and bare gRPC. Prints tables
# for bench/RESULTS.md. Runs on loopback only. Takes about 20 minutes, with --short four.
#
#   bench/inference/inference.sh [--short] [peers] [cpu] [split] [transport] [overload] [memory]
#
# The part peers needs PyTriton. The first run installs it in build/pytriton, with the Python 3.13 found as
# PYTRITON_PYTHON, as python3.13 or with pyenv. Environment: ROUNDS (default 5), SECONDS_EACH (seconds per
# run, default 3), BRAID_SERVER_BINARY (default: built here; the benchmark programs must be in the same
# folder).
set -euo pipefail
cd "$(dirname "$0")/../.."

python_3_13() {
  local candidate
  for candidate in "${PYTRITON_PYTHON:-python3.13}" "$(pyenv prefix 3.13 2>/dev/null)/bin/python" \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.13*/bin/python; do
    if [[ $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == 3.13 ]]; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

install_pytriton() {
  local venv=build/pytriton python nvidia
  local stamp=$venv/requirements.txt
  cmp -s bench/inference/pytriton_requirements.txt "$stamp" && return
  if ! python=$(python_3_13); then
    echo "PyTriton needs Python 3.13, which was not found: set PYTRITON_PYTHON" >&2
    return
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  if ! "$venv/bin/python" -m pip install --no-input --quiet --no-deps --only-binary=:all: \
    -r bench/inference/pytriton_requirements.txt; then
    rm -rf "$venv"
    return
  fi
  nvidia=(.venv/lib/python3*/site-packages/nvidia)
  ln -s "$PWD/${nvidia[0]}" "$venv/lib/python3.13/site-packages/nvidia"
  cp bench/inference/pytriton_requirements.txt "$stamp"
}

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server braid-bench-load braid-bench-bare \
    braid-bench-echo braid-bench-minimal >/dev/null
fi
if [[ " $* " == *" peers "* || " $* " =~ ^\ (--short\ )?\ ?$ ]]; then
  install_pytriton
fi
export GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests
exec timeout --foreground --kill-after=60 2400 .venv/bin/python -m bench.inference.inference "$@"
