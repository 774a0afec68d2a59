#!/usr/bin/env bash
# Compares the decoding of JPEG files on one thread with torchvision. Prints tables for bench/RESULTS.md.
#
#   bench/images/images.sh [--rounds ROUNDS] [--seconds SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../.."

cmake --build build/release --target braid-bench-images >/dev/null
PYTHONPATH=tests exec .venv/bin/python -m bench.images.images "$@"
