#!/usr/bin/env bash
# Times what a trainer's state costs: creating a trainer of a model with 100 M float32 parameters,
# publishing it, its checkpoints, and the steps around them. Prints a table for bench/RESULTS.md. Runs
# on loopback only. Takes a minute and 6 GB of memory.
#
# Environment: ROUNDS (default 10), PARAMETERS (in millions, default 100), BRAID_SERVER_BINARY
# (default: built here).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server >/dev/null
fi
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests
exec timeout --foreground --kill-after=20 400 .venv/bin/python -m bench.training.state
