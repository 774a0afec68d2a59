#!/usr/bin/env bash
# The formats that a model can be served in, against TorchScript, as ratios in one run: training steps,
# latency at batch 1, load time and memory. Prints tables with the lines to reach; bench/RESULTS.md
# holds what it printed. On loopback alone; takes a quarter of an hour or so, and with --short six
# minutes.
#
#   bench/formats.sh [--short] [training] [latency] [load] [memory]
#
# In the environment: ROUNDS (9), SECONDS_EACH (1) of a run, BRAID_SERVER_BINARY (built here, with the
# program that makes requests beside it).
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server braid-bench-load >/dev/null
fi
# One thread, so that what is compiled on the way does not take two.
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false TORCHINDUCTOR_COMPILE_THREADS=1
export PYTHONPATH=client/python:tests:bench
exec timeout --foreground --kill-after=60 2400 .venv/bin/python bench/formats.py "$@"
