"""Tests that the Kustomize base equals the chart's minimal values, and that overlays apply."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.documents import fenced
from deploy.rendering import BASE, KUBERNETES_VERSIONS, Manifests, kustomize, render_minimal
from deploy.validation import validate

OF_THE_CHART = {"app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}


def without_chart_labels(manifests: Manifests) -> dict[tuple[str, str], dict]:
    found = {}
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        kept = {key: value for key, value in labels.items() if key not in OF_THE_CHART}
        manifest["metadata"]["labels"] = kept
        found[manifest["kind"], manifest["metadata"]["name"]] = manifest
    return found


def test_base_equals_the_chart() -> None:
    chart = render_minimal({"metrics": {"dashboards": {"enabled": False}}})
    assert without_chart_labels(kustomize(BASE)) == without_chart_labels(chart)


def test_overlay_of_the_readme_applies(tmp_path: Path) -> None:
    shutil.copytree(BASE, tmp_path / "base")
    (tmp_path / "overlay").mkdir()
    [text] = fenced(BASE.parent / "README.md", "yaml")
    (tmp_path / "overlay/kustomization.yaml").write_text(text)
    manifests = kustomize(tmp_path / "overlay")
    for manifest in manifests:
        validate(manifest, KUBERNETES_VERSIONS[0])
        assert manifest["metadata"]["namespace"] == "models"
    server = manifests.server()
    assert server["image"] == "registry.internal/braid:0.1.0"
    assert server["resources"]["limits"] == {"memory": "16Gi"}
    assert {"--devices=cpu*4", "--tls_client_ca=/etc/braid/tls/ca.crt"} <= set(server["args"])
    [grpc, _] = manifests.of("NetworkPolicy")["spec"]["ingress"]
    assert grpc["from"] == [{"namespaceSelector": {}}]
