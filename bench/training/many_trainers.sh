#!/usr/bin/env bash
# Times a server with many small trainers: memory and threads, steps of many in turn against steps of
# one, and a start after kill -9. Prints a table for bench/RESULTS.md. Runs on loopback only. Takes five
# minutes and 1 GB of disk.
#
# Environment: TRAINERS (default 10000), TURNS (trainers that step in turn, default 1000),
# BRAID_SERVER_BINARY (default: built here).
exec "$(dirname "$0")/../common/run_python.sh" bench.training.many_trainers 900
