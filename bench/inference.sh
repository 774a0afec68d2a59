#!/usr/bin/env bash
# Inference through the server against PyTriton, a bare LibTorch loop and gRPC alone, as ratios in one
# run. Prints tables with the lines to reach, and what gRPC alone and a forward pass on its threads
# come to beside them; bench/RESULTS.md holds what it printed. On loopback alone; takes 20 minutes or
# so, and with --short four.
#
#   bench/inference.sh [--short] [peers] [cpu] [split] [transport] [overload] [memory]
#
# peers wants PyTriton, which is installed in build/pytriton the first time, for a Python 3.13 that is
# found as PYTRITON_PYTHON, as python3.13 or with pyenv. In the environment: ROUNDS (5), SECONDS_EACH
# (3) of a run, BRAID_SERVER_BINARY (built here, with the programs that the benchmark has beside it).
set -euo pipefail
cd "$(dirname "$0")/.."

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
  cmp -s bench/pytriton_requirements.txt "$stamp" && return
  if ! python=$(python_3_13); then
    echo "no Python 3.13, which PyTriton's wheel wants: set PYTRITON_PYTHON" >&2
    return
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  if ! "$venv/bin/python" -m pip install --no-input --quiet --no-deps --only-binary=:all: \
    -r bench/pytriton_requirements.txt; then
    rm -rf "$venv"
    return
  fi
  nvidia=(.venv/lib/python3*/site-packages/nvidia)
  ln -s "$PWD/${nvidia[0]}" "$venv/lib/python3.13/site-packages/nvidia"
  cp bench/pytriton_requirements.txt "$stamp"
}

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server braid-bench-load braid-bench-bare \
    braid-bench-echo braid-bench-least >/dev/null
fi
if [[ " $* " == *" peers "* || " $* " =~ ^\ (--short\ )?\ ?$ ]]; then
  install_pytriton
fi
export GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests:bench
exec timeout --foreground --kill-after=60 2400 .venv/bin/python bench/inference.py "$@"
