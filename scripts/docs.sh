#!/usr/bin/env bash
# Builds the documentation as a site in build/site. A broken link or an unlisted page is an error.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage="usage: scripts/docs.sh [serve]

  serve  show the site on http://127.0.0.1:8000 and follow changes"
requirements=scripts/requirements/docs.txt
venv=.venv-docs
stamp=$venv/.braid-requirements

install() {
  "${PYTHON:-python3}" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
  cp "$requirements" "$stamp"
}

case ${1-} in
  '') command=(build --strict) ;;
  serve) command=(serve) ;;
  *)
    say "$usage" >&2
    exit 2
    ;;
esac
cmp --silent "$requirements" "$stamp" || run_logged docs-packages "Installing MkDocs" install
# Material prints an advertisement otherwise.
export NO_MKDOCS_2_WARNING=1
"$venv/bin/mkdocs" "${command[@]}"
[[ ${1-} == serve ]] || say "docs.sh: wrote build/site"
