#!/usr/bin/env bash
# Compares the dashboards with the types that Grafana publishes for them. By hand: it wants npm.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

grafana=11.6.0 # As in deploy/grafana/requirements.txt.
generator=1.5.1
types=$PWD/build/tools/grafana-schema
raw=$types/node_modules/@grafana/schema/dist/esm/raw

command -v npm >/dev/null || fail "no npm: install Node.js"

install_types() {
  mkdir -p "$types"
  npm install --prefix "$types" --no-audit --no-fund --save-exact \
    "@grafana/schema@$grafana" "ts-json-schema-generator@$generator"
}

# Writes a type as JSON Schema to SCHEMA.json.
schema() { # SCHEMA FILE TYPE
  "$types/node_modules/.bin/ts-json-schema-generator" --no-type-check \
    --path "$(compgen -G "$raw/$2")" --type "$3" --out "$types/$1.json"
}

make_schemas() {
  local kind
  schema dashboard dashboard/x/dashboard_types.gen.d.ts Dashboard
  for kind in bargauge heatmap stat statetimeline table timeseries; do
    schema "$kind-options" "composable/$kind/panelcfg/x/*.d.ts" Options
  done
  for kind in heatmap statetimeline table timeseries; do
    schema "$kind-custom" "composable/$kind/panelcfg/x/*.d.ts" FieldConfig
  done
}

run_logged check-dashboards "Getting Grafana's types" install_types
run_logged check-dashboards "Making schemas of them" make_schemas
.venv/bin/python scripts/check_dashboards.py "$types" deploy/grafana/dashboards/*.json
say "The dashboards are of Grafana's types"
