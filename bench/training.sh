#!/usr/bin/env bash
# Training steps through the server, its Python client included, against a plain PyTorch loop with two
# intra-op threads, one replica and PyTorch DDP with two Gloo processes, as ratios in one run. Prints
# tables with the lines to reach; bench/RESULTS.md holds what it printed. On loopback alone; takes less
# than six minutes.
#
#   bench/training.sh [convnet] [mlp]
#
# In the environment: ROUNDS (9), SECONDS_EACH (1) of a run, BRAID_SERVER_BINARY (built here).
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server >/dev/null
fi
# The driver itself computes nothing; OMP_NUM_THREADS is for what numpy and torch would start idle.
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests:bench
exec timeout --foreground --kill-after=20 400 .venv/bin/python bench/training.py "$@"
