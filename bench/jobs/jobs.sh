#!/usr/bin/env bash
# Compares jobs with plain PyTorch and pyarrow scripts, and measures requests next to jobs. Prints tables for
# bench/RESULTS.md. Runs on loopback only. Takes about 15 minutes and 3 GB in TMPDIR, with --short two minutes.
#
#   bench/jobs/jobs.sh [--short] [training] [scoring] [requests]
#
# Needs Fashion-MNIST: sudo apt-get install dataset-fashion-mnist. Environment: ROUNDS (default 5), ROWS of the
# table to score (default 10 million), THREADS of the server and of the scripts (default 2),
# BRAID_SERVER_BINARY (default: built here; braid-bench-load must be in the same folder).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server braid-bench-load >/dev/null
fi
export GRPC_ENABLE_FORK_SUPPORT=false
export PYTHONPATH=client/python:tests:examples/fashion_mnist
exec timeout --foreground --kill-after=60 2400 .venv/bin/python -m bench.jobs.jobs "$@"
