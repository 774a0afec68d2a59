#!/usr/bin/env bash
# Times what a trainer's state costs: creating a trainer of a model with 100 M float32 parameters,
# publishing it, its checkpoints, and the steps around them. Prints a table for bench/RESULTS.md. Runs
# on loopback only. Takes a minute and 6 GB of memory.
#
# Environment: ROUNDS (default 10), PARAMETERS (in millions, default 100), BRAID_SERVER_BINARY
# (default: built here).
exec "$(dirname "$0")/../common/run_python.sh" bench.training.state 400
