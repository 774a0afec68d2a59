"""Renders deploy/ with helm and kustomize."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / "build/tools/helm"
KUSTOMIZE = ROOT / "build/tools/kustomize"
CHART = ROOT / "deploy/helm/braid"
BASE = ROOT / "deploy/kustomize/base"
# Sets of values, each for one use of the chart.
MATRIX = sorted(CHART.glob("ci/*-values.yaml"))
# Minimal values.
MINIMAL = {
    "models": {"claimName": "braid-models"},
    "auth": {"tokensSecret": "braid-tokens"},
    "tls": {"secretName": "braid-tls"},
}

KUBERNETES_VERSIONS = ("1.30", "1.34", "1.37")  # From the oldest supported version to the newest.


class Refused(Exception):
    """helm or kustomize failed. The message is its error output."""


def run(*command: str | Path, stdin: str = "", cwd: Path = ROOT) -> str:
    done = subprocess.run(command, input=stdin, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise Refused(done.stderr.strip())
    return done.stdout


class Manifests(list):
    """List of manifests with lookup by kind and name."""

    def of(self, kind: str, name: str | None = None) -> dict:
        """Returns the only manifest of a kind, or the one with that name. Otherwise LookupError."""
        found = [
            manifest
            for manifest in self
            if manifest["kind"] == kind and name in (None, manifest["metadata"]["name"])
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} {kind} {name or ''}")
        return found[0]

    def kinds(self) -> set[str]:
        return {manifest["kind"] for manifest in self}

    def workload(self) -> dict:
        return self.of("StatefulSet" if "StatefulSet" in self.kinds() else "Deployment")

    def pod(self) -> dict:
        """Returns the server's pod spec."""
        return self.workload()["spec"]["template"]["spec"]

    def server(self) -> dict:
        """Returns the server's container."""
        return self.pod()["containers"][0]


def parse(text: str) -> Manifests:
    return Manifests(manifest for manifest in yaml.safe_load_all(text) if manifest)


def merge(values: dict, more: dict) -> dict:
    """Merges `more` over `values`, like helm."""
    merged = dict(values)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def render(
    values: dict | Path,
    chart: Path = CHART,
    release: str = "braid",
    kubernetes: str = KUBERNETES_VERSIONS[-1],
) -> Manifests:
    """Renders a release, including its tests. Raises Refused if helm rejects the values."""
    source = values.read_text() if isinstance(values, Path) else json.dumps(values)
    command = (HELM, "template", release, chart, "--namespace=models", "--values=-")
    return parse(run(*command, f"--kube-version={kubernetes}", stdin=source))


def render_minimal(more: dict | None = None, **options) -> Manifests:
    """Renders the minimal values with `more` merged over them."""
    return render(merge(MINIMAL, more or {}), **options)


def kustomize(directory: Path) -> Manifests:
    return parse(run(KUSTOMIZE, "build", directory))
