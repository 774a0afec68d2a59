#!/usr/bin/env bash
# Times what the journal of a trainer costs. Prints a table for bench/RESULTS.md. Runs on loopback only.
# Takes a minute.
#
# Environment: ROUNDS (default 10), BRAID_SERVER_BINARY (default: built here).
exec "$(dirname "$0")/../common/run_python.sh" bench.training.journal 400
