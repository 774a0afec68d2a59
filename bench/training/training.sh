#!/usr/bin/env bash
# Compares training steps through the server and its Python client with PyTorch: a loop with two
# intra-op threads, one replica, and DDP with two Gloo processes. Prints tables for bench/RESULTS.md.
# Runs on loopback only. Takes less than six minutes.
#
#   bench/training/training.sh [convnet] [mlp]
#
# Environment: ROUNDS (default 9), SECONDS_EACH (seconds per run, default 1), BRAID_SERVER_BINARY
# (default: built here).
exec "$(dirname "$0")/../common/run_python.sh" bench.training.training 400 "$@"
