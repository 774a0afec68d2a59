"""Values that contradict each other, or are none, end with a sentence and not with manifests."""

from __future__ import annotations

import json

import pytest
import yaml

from deploy.rendering import CHART, MATRIX, MINIMAL, Refused, render, render_minimal

TEST = {
    "model": "a",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
    "tokenSecret": "token",
}

CONTRADICTIONS = [
    ({"models": {"claimName": ""}}, "there are no models"),
    (
        {"models": {"configMap": {"name": "small"}}},
        "leave all but one of models.claimName, models.configMap.name empty",
    ),
    (
        {"models": {"claimName": "", "configMap": {"name": "small"}, "claimSubPath": "a"}},
        "models.claimSubPath is a folder of models.claimName, which is empty",
    ),
    ({"auth": {"tokensSecret": ""}}, "nobody may call: set auth.tokensSecret or"),
    ({"auth": {"allowUnauthenticated": True}}, "auth.allowUnauthenticated contradicts"),
    ({"tls": {"secretName": ""}}, "tokens would travel in plaintext: set tls.secretName, or"),
    (
        {"tls": {"secretName": "", "clientCASecret": "ca", "terminatedInFront": True}},
        "needs the server's certificate: set tls.secretName",
    ),
    ({"auth": {"certificatesSecret": "who"}}, "nobody asks: set tls.clientCASecret"),
    ({"tls": {"terminatedInFront": True}}, "tls.terminatedInFront contradicts tls.secretName"),
    ({"test": {**TEST, "tokenSecret": ""}}, "set test.tokenSecret"),
    ({"tls": {"clientCASecret": "ca"}, "test": TEST}, "set test.certificateSecret"),
    (
        {"tls": {"secretName": "", "terminatedInFront": True}, "test": {"caSecret": "ca"}},
        "are for tls.secretName, which is empty",
    ),
    (
        {
            "auth": {"tokensSecret": "", "allowUnauthenticated": True},
            "test": {"tokenSecret": "token"},
        },
        "is for auth.tokensSecret, which is empty",
    ),
    ({"server": {"loadModels": ["a"]}}, "is for server.modelControlMode explicit"),
    ({"server": {"extraArgs": ["--listen=::"]}}, "may not have --listen=::"),
    ({"server": {"extraArgs": ["--drain_delay=1"]}}, "may not have --drain_delay=1"),
    ({"server": {"devices": "cuda:0"}, "gpu": {"count": 0}}, "needs GPUs, but gpu.count is 0"),
    ({"server": {"devices": "cpu*4"}}, "would leave the pod's GPUs idle"),
    ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "leave it out of resources"),
    ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "leave it out of resources"),
    ({"training": {"data": {"existingClaim": "a"}}}, "is for training.enabled"),
    (
        {"replicas": 2, "training": {"enabled": True, "data": {"existingClaim": "a"}}},
        "training.data.existingClaim is one pod's",
    ),
    (
        {"training": {"enabled": True}, "autoscaling": {"kind": "HorizontalPodAutoscaler"}},
        "autoscaling would end pods that hold trainers",
    ),
    (
        {"autoscaling": {"kind": "HorizontalPodAutoscaler", "minReplicas": 9}},
        "autoscaling.minReplicas is more than autoscaling.maxReplicas",
    ),
    ({"autoscaling": {"kind": "ScaledObject"}}, "set autoscaling.prometheusAddress"),
    (
        {
            "test": {
                **TEST,
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [500, 500]}],
            }
        },
        "x takes 1000000 bytes, but a ConfigMap holds 700000",
    ),
]

# What the schema refuses: values, and the key that the message names.
NO_VALUES = [
    ({"replica": 2}, "'replica'"),
    ({"models": {"claim": "a"}}, "'claim'"),
    ({"replicas": "2"}, "/replicas"),
    ({"replicas": -1}, "/replicas"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"image": {"digest": "sha256:0"}}, "/image/digest"),
    ({"server": {"devices": "gpu"}}, "/server/devices"),
    ({"server": {"devices": "auto"}}, "/server/devices"),
    ({"server": {"modelControlMode": "all"}}, "/server/modelControlMode"),
    ({"server": {"extraArgs": ["tf32"]}}, "/server/extraArgs/0"),
    ({"server": {"logFormat": "xml"}}, "/server/logFormat"),
    ({"server": {"logLevel": "loud"}}, "/server/logLevel"),
    ({"server": {"logLevel": "info,access"}}, "/server/logLevel"),
    ({"server": {"maxConnectionAge": -1}}, "/server/maxConnectionAge"),
    ({"server": {"maxClientRequestBytes": -1}}, "/server/maxClientRequestBytes"),
    ({"models": {"claimName": "Not_A_Name"}}, "/models/claimName"),
    ({"fullnameOverride": "1abc"}, "/fullnameOverride"),
    ({"auth": {"tokensSecret": "Not_A_Name"}}, "/auth/tokensSecret"),
    ({"tls": {"terminatedInFront": "mesh"}}, "/tls/terminatedInFront"),
    ({"sharedMemory": {"sizeLimit": "1 GB"}}, "/sharedMemory/sizeLimit"),
    ({"drain": {"timeoutSeconds": 1.5}}, "/drain/timeoutSeconds"),
    ({"autoscaling": {"kind": "HPA"}}, "/autoscaling/kind"),
    ({"autoscaling": {"minReplicas": 0}}, "/autoscaling/minReplicas"),
    ({"metrics": {"monitor": True}}, "/metrics/monitor"),
    ({"podDisruptionBudget": {"maxUnavailable": 0}}, "/podDisruptionBudget/maxUnavailable"),
    ({"test": {"model": "a"}}, "/test/inputs"),
    (
        {"models": {"initContainers": [{"name": "a", "image": "b", "securityContext": {}}]}},
        "/models/initContainers/0",
    ),
]


@pytest.mark.parametrize("values, sentence", CONTRADICTIONS)
def test_contradictions(values: dict, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        render_minimal(values)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("release", ["1rel", "my.release"])
def test_a_release_whose_name_is_none_of_a_service(release: str) -> None:
    with pytest.raises(Refused) as refused:
        render_minimal(release=release)
    assert f"no Service can be called '{release}-braid'" in str(refused.value)
    named = render_minimal({"fullnameOverride": "mine"}, release=release)
    assert named.workload()["metadata"]["name"] == "mine"


@pytest.mark.parametrize("values, key", NO_VALUES)
def test_the_schema(values: dict, key: str) -> None:
    with pytest.raises(Refused) as refused:
        render_minimal(values)
    assert "don't meet the specifications of the schema" in str(refused.value)
    assert key in str(refused.value)


def test_nothing_said_is_refused() -> None:
    with pytest.raises(Refused, match="there are no models"):
        render({})
    with pytest.raises(Refused, match="nobody may call"):
        render({"models": MINIMAL["models"]})


def test_flags_of_the_chart_cannot_be_given_twice() -> None:
    for flags in {tuple(render(values).server()["args"]) for values in MATRIX}:
        for flag in set(flags) - {"--tf32", "--training_share=0"}:
            with pytest.raises(Refused, match="other values of the chart set it"):
                render_minimal({"server": {"extraArgs": [flag]}})


def described(schema: dict, path: str = "") -> list[str]:
    """The paths of a schema's properties that have no description."""
    missing = [] if "description" in schema or not path or path.endswith("]") else [path]
    for key, value in schema.get("properties", {}).items():
        missing += described(value, f"{path}.{key}")
    return missing


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert described(schema) == []


def test_the_values_are_those_of_the_schema() -> None:
    def keys(node: object, path: str = "") -> set[str]:
        if not isinstance(node, dict) or path.endswith(("strategy", "matchLabels")):
            return {path}
        return {path}.union(*(keys(value, f"{path}.{key}") for key, value in node.items()))

    def properties(schema: dict, path: str = "") -> set[str]:
        inner = schema.get("properties", {}).items()
        return {path}.union(*(properties(value, f"{path}.{key}") for key, value in inner))

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = (".resources", ".metrics.dashboards.labels")
    names = {key for key in keys(values) if not key.startswith(free)}
    assert names == {key for key in properties(schema) if not key.startswith(free)} - {".global"}
