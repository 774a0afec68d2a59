#!/usr/bin/env bash
# Times exports of recurrent layers, and training steps through the server and in PyTorch. Prints
# tables for bench/RESULTS.md. Runs on loopback only. Takes three minutes.
#
# Environment: ROUNDS (default 11), SECONDS_EACH (seconds per run, default 1), BRAID_SERVER_BINARY
# (default: built here).
exec "$(dirname "$0")/../common/run_python.sh" bench.training.recurrent 600
