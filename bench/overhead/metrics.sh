#!/usr/bin/env bash
# Measures the CPU time of the metrics for a request of one row, relative to its forward pass in a bare
# LibTorch loop. Prints a table for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --build build/release --target braid-bench-metrics >/dev/null
.venv/bin/python -m bench.common.export_mlp "$work/models" 2>/dev/null

echo "| 784→512→512→10 float32 | threads | metrics | forward | ratio | in ${ROUNDS:-5} rounds |"
echo "|---|---|---|---|---|---|"
for threads in 1 2; do
  build/release/bin/braid-bench-metrics --path="$work/models/mlp/1/model.pt" --threads="$threads" \
    --rounds="${ROUNDS:-5}" --seconds="${SECONDS_EACH:-1}"
done
