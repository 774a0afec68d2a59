#!/usr/bin/env bash
# Compares model formats with TorchScript: training steps, latency at batch 1, load time and memory.
# Prints tables for bench/RESULTS.md. Runs on loopback only. Takes about 15 minutes, with --short six.
#
#   bench/formats/formats.sh [--short] [training] [latency] [load] [memory]
#
# Environment: ROUNDS (default 9), SECONDS_EACH (seconds per run, default 1), BRAID_SERVER_BINARY
# (default: built here; braid-bench-load must be in the same folder).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server braid-bench-load >/dev/null
fi
# One thread, so that compiling a model does not use two.
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false TORCHINDUCTOR_COMPILE_THREADS=1
export PYTHONPATH=client/python:tests
exec timeout --foreground --kill-after=60 2400 .venv/bin/python -m bench.formats.formats "$@"
