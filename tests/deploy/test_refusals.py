"""Values that contradict each other, or are none, end with a sentence and not with manifests."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from deploy.rendering import CHART, MATRIX, MINIMAL, ROOT, Refused, render, render_minimal

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
    (
        {"resources": {"limits": {"memory": "1Gi"}}},
        "resources.requests.memory 8Gi is more than resources.limits.memory 1Gi",
    ),
    ({"resources": {"limits": {"memory": 8589934591}}}, "resources.limits.memory 8589934591:"),
    ({"resources": {"limits": {"cpu": "1999m"}}}, "resources.requests.cpu 2 is more than"),
    (
        {"strategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        "strategy.rollingUpdate.maxSurge and maxUnavailable are both 0",
    ),
    ({"strategy": {"rollingUpdate": {"maxUnavailable": "0%"}}}, "are both 0"),
    *(
        ({"extraVolumeMounts": [{"name": "v", "mountPath": path}]}, f"extraVolumeMounts has {path}")
        for path in ("/models", "/tmp", "/tmp/", "/dev/shm", "/etc/braid/tls", "/etc/braid/tokens")
    ),
    (
        {
            "training": {"enabled": True},
            "extraVolumeMounts": [{"name": "v", "mountPath": "/data"}],
        },
        "extraVolumeMounts has /data",
    ),
    ({"extraVolumeMounts": [{"name": "v", "mountPath": "/v"}] * 2}, "extraVolumeMounts has /v"),
    (
        {
            "models": {
                "claimName": "",
                "initContainers": [
                    {
                        "name": "a",
                        "image": "b",
                        "volumeMounts": [{"name": "v", "mountPath": "/models"}],
                    }
                ],
            }
        },
        "models.initContainers[0].volumeMounts has /models",
    ),
    (
        {"extraVolumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
        "extraVolumeMounts mounts volume cache at /cache, but the pod has no such volume: "
        "add it to extraVolumes (volumes: models, tmp, shm, tls, tokens)",
    ),
    (
        {
            "extraVolumes": [{"name": "cache", "emptyDir": {}}],
            "extraVolumeMounts": [
                {"name": "cache", "mountPath": "/cache"},
                {"name": "cahce", "mountPath": "/other"},
            ],
        },
        "extraVolumeMounts mounts volume cahce at /other",
    ),
    # Without trainers there is no volume for them.
    ({"extraVolumeMounts": [{"name": "data", "mountPath": "/d"}]}, "mounts volume data at /d"),
    (
        {"extraVolumeMounts": [{"name": "client-ca", "mountPath": "/ca"}]},
        "mounts volume client-ca at /ca",
    ),
    (
        {
            "models": {
                "claimName": "",
                "initContainers": [
                    {"name": "a", "image": "b"},
                    {
                        "name": "c",
                        "image": "d",
                        "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
                    },
                ],
            }
        },
        "models.initContainers[1].volumeMounts mounts volume keys at /keys",
    ),
    ({"extraEnv": [{"name": "A", "value": 1 << 60}]}, "is too large to keep its digits"),
    ({"service": {"nodePort": 30001}}, "service.nodePort: 30001 needs service.type NodePort or"),
    ({"ingress": {"enabled": True}}, "ingress.hosts: empty, but ingress.enabled is true"),
    ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes has tmp"),
    ({"extraVolumes": [{"name": "tokens", "emptyDir": {}}]}, "extraVolumes has tokens"),
    (
        {"podLabels": {"app.kubernetes.io/instance": "mine"}},
        "podLabels may not have app.kubernetes.io/instance",
    ),
    (
        {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}},
        "service.loadBalancerSourceRanges is for service.type LoadBalancer",
    ),
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
    ({"server": {"devices": "cpu*65"}}, "/server/devices"),
    ({"server": {"modelControlMode": "all"}}, "/server/modelControlMode"),
    ({"server": {"extraArgs": ["tf32"]}}, "/server/extraArgs/0"),
    ({"server": {"logFormat": "xml"}}, "/server/logFormat"),
    ({"server": {"logLevel": "loud"}}, "/server/logLevel"),
    ({"server": {"logLevel": "info,access"}}, "/server/logLevel"),
    ({"server": {"logLevel": "foo=info"}}, "/server/logLevel"),
    ({"server": {"logLevel": "audit=off"}}, "/server/logLevel"),
    ({"server": {"maxConnectionAge": -1}}, "/server/maxConnectionAge"),
    ({"server": {"maxClientRequestBytes": 1 << 61}}, "/server/maxClientRequestBytes"),
    ({"server": {"maxClientRequestBytes": -1}}, "/server/maxClientRequestBytes"),
    ({"models": {"claimName": "Not_A_Name"}}, "/models/claimName"),
    ({"fullnameOverride": "1abc"}, "/fullnameOverride"),
    ({"auth": {"tokensSecret": "Not_A_Name"}}, "/auth/tokensSecret"),
    ({"tls": {"terminatedInFront": "mesh"}}, "/tls/terminatedInFront"),
    ({"sharedMemory": {"sizeLimit": "1 GB"}}, "/sharedMemory/sizeLimit"),
    ({"drain": {"timeoutSeconds": 1.5}}, "/drain/timeoutSeconds"),
    ({"drain": {"delaySeconds": 100000}}, "/drain/delaySeconds"),
    ({"startup": {"seconds": 1 << 33}}, "/startup/seconds"),
    ({"strategy": {"type": "OneByOne"}}, "/strategy/type"),
    ({"strategy": {"recreate": True}}, "'recreate'"),
    (
        {"strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}},
        "/strategy/rollingUpdate/maxUnavailable",
    ),
    ({"podAnnotations": {"a": True}}, "/podAnnotations/a"),
    ({"podLabels": {"a": "not a label"}}, "/podLabels/a"),
    ({"podLabels": {"a": 1}}, "/podLabels/a"),
    ({"service": {"annotations": {"a": 1}}}, "/service/annotations/a"),
    ({"serviceAccount": {"annotations": {"a": True}}}, "/serviceAccount/annotations/a"),
    ({"ingress": {"annotations": {"a": 0}}}, "/ingress/annotations/a"),
    ({"metrics": {"labels": {"a": 1}}}, "/metrics/labels/a"),
    ({"nodeSelector": {"a": True}}, "/nodeSelector/a"),
    ({"tolerations": [{"key": "a", "value": True}]}, "/tolerations/0/value"),
    (
        {"networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"a": True}}}]}},
        "/networkPolicy/clients/0/podSelector/matchLabels/a",
    ),
    (
        {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchExpressions": [{"values": [1]}]},
                }
            ]
        },
        "/topologySpreadConstraints/0/labelSelector/matchExpressions/0/values/0",
    ),
    (
        {
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "a", "labelSelector": {"matchLabels": {"b": 1}}}
                    ]
                }
            }
        },
        "/labelSelector/matchLabels/b",
    ),
    ({"extraEnv": [{"name": "A", "value": ["b"]}]}, "/extraEnv/0/value"),
    ({"extraEnv": [{"name": 1, "value": "b"}]}, "/extraEnv/0/name"),
    ({"extraEnv": {"A": "b"}}, "/extraEnv"),
    ({"extraVolumeMounts": [{"name": "v"}]}, "/extraVolumeMounts/0"),
    (
        {"extraVolumes": [{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"a": True}}}]},
        "/extraVolumes/0/csi/volumeAttributes/a",
    ),
    ({"server": {"extraArgs": [1]}}, "/server/extraArgs/0"),
    ({"podSecurityContext": {"fsGroup": "10001"}}, "/podSecurityContext/fsGroup"),
    ({"podSecurityContext": {"fsGroup": -1}}, "/podSecurityContext/fsGroup"),
    ({"podSecurityContext": {"runAsUser": 0}}, "'runAsUser'"),
    ({"service": {"type": "NodePort", "nodePort": 70000}}, "/service/nodePort"),
    ({"service": {"type": "NodePort", "nodePort": "30001"}}, "/service/nodePort"),
    ({"ingress": {"hosts": ["a.example"]}}, "/ingress/hosts/0"),
    ({"ingress": {"hosts": [{"host": "A_b"}]}}, "/ingress/hosts/0/host"),
    (
        {"ingress": {"hosts": [{"host": "a", "paths": [{"path": "x"}]}]}},
        "/ingress/hosts/0/paths/0/path",
    ),
    ({"ingress": {"tls": [{"hosts": ["a"]}]}}, "/ingress/tls/0"),
    ({"priorityClassName": "Not_A_Name"}, "/priorityClassName"),
    ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "/topologySpreadConstraints/0"),
    (
        {"service": {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.1"]}},
        "/service/loadBalancerSourceRanges/0",
    ),
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


@pytest.mark.parametrize(
    "limits", [{"memory": "8Gi"}, {"memory": 8589934592}, {"memory": "8.6G", "cpu": "2000m"}]
)
def test_a_limit_may_be_what_is_requested(limits: dict) -> None:
    resources = render_minimal({"resources": {"limits": limits}}).server()["resources"]
    assert resources["limits"].items() >= limits.items()


FLAGS = (ROOT / "server/flags.cc").read_text()


@pytest.mark.parametrize(
    "flag, path",
    [
        ("repository_poll_seconds", "server.repositoryPollSeconds"),
        ("max_connection_age", "server.maxConnectionAge"),
        ("max_client_requests", "server.maxClientRequests"),
        ("max_client_request_bytes", "server.maxClientRequestBytes"),
        ("drain_delay", "drain.delaySeconds"),
        ("drain_timeout", "drain.timeoutSeconds"),
    ],
)
def test_ranges_are_the_servers(flag: str, path: str) -> None:
    [(least, most)] = re.findall(
        rf'"--{flag}".*?->check\((?:Between|CLI::Range)\(([^,]+), (.+?)\)\)', FLAGS, re.DOTALL
    )
    value = json.loads((CHART / "values.schema.json").read_text())
    for key in path.split("."):
        value = value["properties"][key]

    def number(text: str) -> float:
        base, _, shift = re.sub(r"int64_t\{(\d+)\}", r"\1", text).partition(" << ")
        return float(base) * 2 ** int(shift or 0)

    assert (value["minimum"], value["maximum"]) == (number(least), number(most))


def test_modules_of_the_log_are_the_servers() -> None:
    log = (ROOT / "server/telemetry/log.cc").read_text()
    [names] = re.findall(r"kModuleNames = \{(.*?)\};", log, re.DOTALL)
    *modules, audit = re.findall(r'"(\w+)"', names)
    assert audit == "audit"  # which has no level
    schema = json.loads((CHART / "values.schema.json").read_text())
    pattern = schema["properties"]["server"]["properties"]["logLevel"]["pattern"]
    assert pattern.startswith(f"^(({'|'.join(modules)})=)?(")


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
        if not isinstance(node, dict) or path.endswith("matchLabels"):
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
