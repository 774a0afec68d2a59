#!/usr/bin/env bash
# What the metrics cost a request of one row, against its forward pass in a bare LibTorch loop, as CPU time and in
# one run. Prints a table; bench/RESULTS.md holds what it printed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --build build/release --target braid-bench-metrics >/dev/null
.venv/bin/python bench/export_mlp.py "$work/models" 2>/dev/null

echo "| 784→512→512→10 float32 | threads | metrics | forward | ratio | in ${ROUNDS:-5} rounds |"
echo "|---|---|---|---|---|---|"
for threads in 1 2; do
  build/release/bin/braid-bench-metrics --path="$work/models/mlp/1/model.pt" --threads="$threads" \
    --rounds="${ROUNDS:-5}" --seconds="${SECONDS_EACH:-1}"
done
