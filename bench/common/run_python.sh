#!/usr/bin/env bash
# Builds the server, unless BRAID_SERVER_BINARY names one, and runs a Python benchmark of it.
#
#   bench/common/run_python.sh MODULE SECONDS [ARGUMENT…]
#
# SECONDS: limit of the run.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server >/dev/null
fi
# The driver computes nothing. OMP_NUM_THREADS keeps numpy and torch from starting idle threads.
export OMP_NUM_THREADS=1 GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests
exec timeout --foreground --kill-after=20 "$2" .venv/bin/python -m "$1" "${@:3}"
