#!/usr/bin/env bash
# Compares jobs over JPEG files with PyTorch's DataLoader. Prints tables for bench/RESULTS.md. Takes about
# 15 minutes, with --short one.
#
#   bench/images/jobs.sh [--short] [loading] [scoring]
#
# Environment: ROUNDS (default 5), IMAGES (default 5000), THREADS (default: all cores),
# BRAID_SERVER_BINARY (default: built here).
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ -z ${BRAID_SERVER_BINARY:-} ]]; then
  cmake --build build/release --target braid-server >/dev/null
fi
export GRPC_ENABLE_FORK_SUPPORT=false
PYTHONPATH=client/python:tests exec .venv/bin/python -m bench.images.jobs "$@"
