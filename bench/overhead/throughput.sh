#!/usr/bin/env bash
# Measures forward and step throughput through the server, relative to a bare LibTorch loop with the same
# number of threads. Prints a table for bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=build/release/bin
work=$(mktemp -d)
server=
stop() {
  if [[ -n $server ]]; then
    kill -TERM "$server" && wait "$server"
    server=
  fi
}
trap 'stop || true; rm -rf "$work"' EXIT

cmake --build build/release --target braid-server braid-bench-throughput >/dev/null
.venv/bin/python -m bench.common.export_mlp "$work/models" 2>/dev/null

echo "| 784→512→512→10 float32 | threads | LibTorch rows/s | Braid rows/s | ratio | in ${ROUNDS:-5} rounds |"
echo "|---|---|---|---|---|---|"
for threads in 1 2; do
  rm -f "$work/ready.json"
  "$bin/braid-server" --model_repository="$work/models" --devices="cpu*$threads" --cpu_threads=1 \
    --grpc_port=0 --metrics_port=0 --ready_file="$work/ready.json" >"$work/server.log" 2>&1 &
  server=$!
  until [[ -f $work/ready.json ]]; do
    kill -0 "$server" || { cat "$work/server.log" >&2; exit 1; }
    sleep 0.1
  done
  port=$(sed -E 's/.*"grpc_port":([0-9]+).*/\1/' "$work/ready.json")
  "$bin/braid-bench-throughput" --server="127.0.0.1:$port" --path="$work/models/mlp/1/model.pt" \
    --threads="$threads" --rounds="${ROUNDS:-5}" --seconds="${SECONDS_EACH:-1}"
  stop
done
