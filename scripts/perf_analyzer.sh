#!/usr/bin/env bash
# Runs Triton's perf_analyzer, from the wheel of tritonclient 2.49.0, with the libraries it needs:
#   scripts/perf_analyzer.sh -m fashion -i grpc -u 127.0.0.1:8001 -b 32 --concurrency-range 1:8:2
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$root/.venv/tritonclient-2.49.0/bin/perf_analyzer
libraries=("$root"/.venv/lib/python3*/site-packages/nvidia/cuda_runtime/lib)

if [[ ! -x $program || ! -e ${libraries[0]}/libcudart.so.12 ]]; then
  echo "error: perf_analyzer is not installed in $root/.venv: run scripts/setup.sh" >&2
  exit 1
fi
export LD_LIBRARY_PATH=${libraries[0]}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$program" "$@"
