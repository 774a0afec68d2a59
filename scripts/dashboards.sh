#!/usr/bin/env bash
# Makes Grafana's dashboards from deploy/grafana/braid_dashboards, and gives the chart its copies of
# them and of the alerts. Run it after a change of either; tests/deploy says if it was forgotten.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

case $# in
  0) dashboards=deploy/grafana/dashboards ;;
  1) dashboards=$1 ;;
  *) say "usage: scripts/dashboards.sh [DIRECTORY]" >&2 && exit 2 ;;
esac
sdk=build/tools/dashboards
[[ -d $sdk ]] || fail "no $sdk: run scripts/setup_deploy.sh first"

PYTHONPATH=$sdk:deploy/grafana .venv/bin/python -m braid_dashboards "$dashboards"
if (($# == 0)); then
  cp "$dashboards"/*.json deploy/helm/braid/dashboards/
  cp deploy/prometheus/*.rules.yaml deploy/helm/braid/rules/
fi
