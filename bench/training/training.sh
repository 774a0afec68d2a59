#!/usr/bin/env bash
# Compares training steps through the server and its Python client with PyTorch: a loop with two
# intra-op threads, one replica, and DDP with two Gloo processes. Prints tables for bench/RESULTS.md.
# Runs on loopback only. Takes less than six minutes.
#
#   bench/training/training.sh [convnet] [mlp]
#
# Environment: ROUNDS (default 9), SECONDS_EACH (seconds per run, default 1), BRAID_SERVER_BINARY
# (default: built here).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server >/dev/null
fi
# The driver computes nothing. OMP_NUM_THREADS keeps numpy and torch from starting idle threads.
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests
exec timeout --foreground --kill-after=20 400 .venv/bin/python -m bench.training.training "$@"
