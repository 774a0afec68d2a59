#!/usr/bin/env bash
# Times training steps with all but the last layer frozen against full steps, through the server and
# in PyTorch, and prints a table for bench/RESULTS.md. Runs on loopback only. Takes three minutes.
#
# Environment: ROUNDS (default 15), SECONDS_EACH (seconds per run, default 1), BRAID_SERVER_BINARY
# (default: built here).
exec "$(dirname "$0")/../common/run_python.sh" bench.training.frozen 400
