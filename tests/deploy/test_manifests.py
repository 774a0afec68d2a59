"""Tests that all sets of values give valid manifests and restricted pods."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest

from deploy.rendering import (
    BASE,
    CHART,
    HELM,
    KUBERNETES_VERSIONS,
    MATRIX,
    Manifests,
    Refused,
    kustomize,
    render,
    render_minimal,
    run,
)
from deploy.validation import validate

ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


def name(path: Path) -> str:
    return path.name.removesuffix("-values.yaml")


matrix = pytest.mark.parametrize("values", MATRIX, ids=name)


@matrix
def test_helm_lint_passes(values: Path) -> None:
    run(HELM, "lint", "--strict", CHART, "--values", values)


def test_helm_lint_fails_without_values() -> None:
    run(HELM, "lint", "--strict", CHART)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@matrix
def test_chart_is_valid_for_kubernetes(values: Path, version: str) -> None:
    for manifest in render(values, kubernetes=version):
        validate(manifest, version)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_kustomize_base_is_valid_for_kubernetes(version: str) -> None:
    for manifest in kustomize(BASE):
        validate(manifest, version)


def test_misspelt_field_is_rejected() -> None:
    deployment = render_minimal().of("Deployment")
    deployment["spec"]["template"]["spec"]["tolerationz"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(deployment, KUBERNETES_VERSIONS[0])


def test_older_kubernetes_is_rejected() -> None:
    with pytest.raises(Refused, match="incompatible with Kubernetes"):
        render_minimal(kubernetes="1.29")


def pods(manifests: Manifests) -> list[dict]:
    tests = [manifest["spec"] for manifest in manifests if manifest["kind"] == "Pod"]
    return [manifests.pod(), *tests]


@matrix
def test_pods_meet_the_restricted_standard(values: Path) -> None:
    for pod in pods(render(values)):
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in pod.get("volumes", []):
            assert volume.keys() - {"name"} <= ALLOWED_VOLUMES
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@matrix
def test_mounts_have_volumes(values: Path) -> None:
    manifests = render(values)
    claims = manifests.workload()["spec"].get("volumeClaimTemplates", [])
    names = {claim["metadata"]["name"] for claim in claims}
    for pod in pods(manifests):
        volumes = [volume["name"] for volume in pod.get("volumes", [])]
        assert len(volumes) == len(set(volumes))
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            mounts = container["volumeMounts"]
            assert {mount["name"] for mount in mounts} <= names | set(volumes)
            assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@matrix
def test_selectors_match_only_the_servers_pods(values: Path) -> None:
    manifests = render(values)
    workload = manifests.workload()
    labels = workload["spec"]["selector"]["matchLabels"]
    assert workload["spec"]["template"]["metadata"]["labels"].items() >= labels.items()
    for service in (manifest for manifest in manifests if manifest["kind"] == "Service"):
        assert service["spec"]["selector"] == labels
    for kind, field in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        if kind in manifests.kinds():
            assert manifests.of(kind)["spec"][field]["matchLabels"] == labels
    if "Pod" in manifests.kinds():
        assert manifests.of("Pod")["metadata"]["labels"].items() & labels.items() != labels.items()


@matrix
def test_all_objects_are_namespaced(values: Path) -> None:
    assert not [kind for kind in render(values).kinds() if re.match("Cluster|Role", kind)]
