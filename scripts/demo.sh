#!/usr/bin/env bash
# Builds the server and the braid command, trains a small convnet on Fashion-MNIST over the network,
# publishes it and classifies with it, on two CPU replicas or on all GPUs. Then does the same with jobs,
# which read and write Parquet files on the server.
#
# FASHION_MNIST=DIRECTORY: takes the data set from a directory instead of Debian's package.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

epochs=6
batch_size=256
min_accuracy=0.88
ready_seconds=120
stop_seconds=60

step() { printf '\n== %s\n' "$*"; }

server=''
work=''
# Stops the server, if it runs, and removes the demo's files. After an error, prints the server's log.
clean_up() {
  local status=$?
  if [[ -n $server ]] && kill -TERM "$server" 2>/dev/null; then
    # Allow ten seconds to drain; a server that hangs must not outlive the demo.
    timeout 10 tail --pid="$server" -f /dev/null || kill -KILL "$server" 2>/dev/null || true
  fi
  if ((status > 0 && status < 128)) && [[ -s $work/server.log ]]; then
    printf '\nThe end of the server log:\n' >&2
    tail -n 20 "$work/server.log" >&2
  fi
  [[ -z $work ]] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start_server() {
  build/release/bin/braid-server --model_repository="$work/models" --data_dir="$work/data" \
    --data_root="$work/fashion_mnist" \
    --devices=auto --grpc_port=0 --metrics_port=0 --ready_file="$work/ready.json" \
    >"$work/server.log" 2>&1 &
  server=$!
  local deadline=$((SECONDS + ready_seconds))
  until [[ -e $work/ready.json ]]; do
    if ! kill -0 "$server" 2>/dev/null; then
      server=''
      fail "the server did not start"
    fi
    ((SECONDS < deadline)) || fail "the server was not ready after $ready_seconds s"
    sleep 0.1
  done
  cat "$work/server.log"
}

stop_server() {
  local rc=0
  kill -TERM "$server"
  timeout "$stop_seconds" tail --pid="$server" -f /dev/null ||
    fail "the server still ran $stop_seconds s after SIGTERM"
  wait "$server" || rc=$?
  server=''
  ((rc == 0)) || fail "the server ended with status $rc"
  say "drained, status 0"
}

if (($#)); then
  say "usage: scripts/demo.sh" >&2
  exit 2
fi
scripts/setup.sh braid-server
started=$SECONDS
work=$(mktemp -d)
mkdir "$work/models" "$work/data" "$work/fashion_mnist"

step "Data and model"
.venv/bin/python examples/fashion_mnist/dataset.py "$work/fashion_mnist" \
  ${FASHION_MNIST:+"$FASHION_MNIST"}
.venv/bin/python examples/fashion_mnist/export.py "$work/models"

step "Server"
start_server
address=127.0.0.1:$(.venv/bin/python -c \
  'import json, sys; print(json.load(open(sys.argv[1]))["grpc_port"])' "$work/ready.json")

step "Training, $epochs epochs, batches of $batch_size split over the replicas"
.venv/bin/braid --server "$address" train fashion \
  --input x="$work/fashion_mnist/train_images.npy" \
  --target target="$work/fashion_mnist/train_labels.npy" \
  --epochs "$epochs" --batch-size "$batch_size" --optimizer SGD --lr 0.01 --momentum 0.9 --publish

step "Classification through tritonclient"
.venv/bin/python examples/fashion_mnist/evaluate.py "$address" "$work/fashion_mnist" "$min_accuracy"

step "The same training as a job, from Parquet"
.venv/bin/braid --server "$address" jobs submit examples/fashion_mnist/train.yaml --wait

step "Classification as a job, from Parquet to Parquet"
.venv/bin/braid --server "$address" jobs submit examples/fashion_mnist/score.yaml --wait
.venv/bin/python examples/fashion_mnist/accuracy.py "$work/data/outputs/scores.parquet" "$min_accuracy"

step "Devices"
.venv/bin/braid --server "$address" devices

step "Stop"
stop_server
say "Demo finished in $((SECONDS - started)) s."
