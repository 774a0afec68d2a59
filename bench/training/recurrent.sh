#!/usr/bin/env bash
# Times exports of recurrent layers, and training steps through the server and in PyTorch. Prints
# tables for bench/RESULTS.md. Runs on loopback only. Takes three minutes.
#
# Environment: ROUNDS (default 11), SECONDS_EACH (seconds per run, default 1), BRAID_SERVER_BINARY
# (default: built here).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server >/dev/null
fi
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests
exec timeout --foreground --kill-after=20 600 .venv/bin/python -m bench.training.recurrent
