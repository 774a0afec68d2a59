"""Tests that invalid and contradictory values end with an error message."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from deploy.rendering import CHART, MATRIX, MINIMAL, ROOT, Refused, merge, render, render_minimal

TEST = {
    "model": "a",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
    "tokenSecret": "token",
}

CONTRADICTIONS = [
    ({"models": {"claimName": ""}}, "models: no source is set"),
    (
        {"models": {"configMap": {"name": "small"}}},
        "several sources are set (models.claimName, models.configMap.name)",
    ),
    (
        {"models": {"claimName": "", "configMap": {"name": "small"}, "claimSubPath": "a"}},
        "models.claimSubPath: needs models.claimName, which is empty",
    ),
    ({"training": {"tracking": True}}, "training.tracking: needs training.enabled=true"),
    (
        {"jobs": {"maxRunningPerIdentity": 1}},
        "jobs.maxRunningPerIdentity: needs training.enabled=true",
    ),
    ({"jobs": {"dataClaim": "tables"}}, "jobs.dataClaim: needs training.enabled=true"),
    ({"jobs": {"dataSubPath": "a"}}, "jobs.dataSubPath: needs jobs.dataClaim, which is empty"),
    ({"jobs": {"uploads": {"size": "1Gi"}}}, "jobs.uploads: needs training.enabled=true"),
    (
        {
            "training": {"enabled": True},
            "jobs": {"uploads": {"size": "1Gi", "existingClaim": "a"}},
        },
        "jobs.uploads: size and existingClaim are set",
    ),
    (
        {
            "training": {"enabled": True},
            "replicas": 2,
            "jobs": {"uploads": {"existingClaim": "a"}},
        },
        "jobs.uploads.existingClaim: supports a single pod",
    ),
    ({"jobs": {"uploads": {"quota": 1}}}, "jobs.uploads: needs jobs.uploads.size or"),
    ({"auth": {"tokensSecret": ""}}, "auth: no client has access: set auth.tokensSecret or"),
    ({"auth": {"allowUnauthenticated": True}}, "auth.allowUnauthenticated: conflicts with"),
    ({"tls": {"secretName": ""}}, "tokens would be sent in plaintext: set tls.secretName, or"),
    (
        {"tls": {"secretName": "", "clientCASecret": "ca", "terminatedInFront": True}},
        "needs the server's certificate: set tls.secretName",
    ),
    (
        {"auth": {"certificatesSecret": "who"}},
        "auth.certificatesSecret: needs mutual TLS: set tls.clientCASecret",
    ),
    ({"tls": {"terminatedInFront": True}}, "tls.terminatedInFront: conflicts with tls.secretName"),
    ({"test": {**TEST, "tokenSecret": ""}}, "set test.tokenSecret"),
    ({"tls": {"clientCASecret": "ca"}, "test": TEST}, "set test.certificateSecret"),
    (
        {"tls": {"secretName": "", "terminatedInFront": True}, "test": {"caSecret": "ca"}},
        "need tls.secretName, which is empty",
    ),
    (
        {
            "auth": {"tokensSecret": "", "allowUnauthenticated": True},
            "test": {"tokenSecret": "token"},
        },
        "needs auth.tokensSecret, which is empty",
    ),
    ({"server": {"loadModels": ["a"]}}, "needs server.modelControlMode=explicit"),
    ({"server": {"extraArgs": ["--listen=::"]}}, "--listen=:: is not allowed"),
    ({"server": {"extraArgs": ["--drain_delay=1"]}}, "--drain_delay=1 is not allowed"),
    ({"server": {"devices": "cuda:0"}, "gpu": {"count": 0}}, "needs GPUs, but gpu.count is 0"),
    ({"server": {"devices": "cpu*4"}}, "leaves the pod's GPUs idle"),
    ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "remove it from resources"),
    ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "remove it from resources"),
    (
        {"resources": {"limits": {"memory": "1Gi"}}},
        "resources.requests.memory: 8Gi exceeds resources.limits.memory 1Gi",
    ),
    ({"resources": {"limits": {"memory": 8589934591}}}, "resources.limits.memory 8589934591:"),
    ({"resources": {"limits": {"cpu": "1999m"}}}, "resources.requests.cpu: 2 exceeds"),
    (
        {"strategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        "strategy.rollingUpdate: maxSurge and maxUnavailable are both 0",
    ),
    ({"strategy": {"rollingUpdate": {"maxUnavailable": "0%"}}}, "are both 0"),
    *(
        (
            {"extraVolumeMounts": [{"name": "v", "mountPath": path}]},
            f"extraVolumeMounts: {path} is already",
        )
        for path in ("/models", "/tmp", "/tmp/", "/dev/shm", "/etc/braid/tls", "/etc/braid/tokens")
    ),
    (
        {
            "training": {"enabled": True},
            "extraVolumeMounts": [{"name": "v", "mountPath": "/data"}],
        },
        "extraVolumeMounts: /data is already",
    ),
    (
        {"extraVolumeMounts": [{"name": "v", "mountPath": "/v"}] * 2},
        "extraVolumeMounts: /v is already",
    ),
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
        "models.initContainers[0].volumeMounts: /models is already",
    ),
    (
        {"extraVolumeMounts": [{"name": "cache", "mountPath": "/cache"}]},
        "extraVolumeMounts: volume cache for /cache does not exist: "
        "add it to extraVolumes (existing volumes: models, tmp, shm, tls, tokens)",
    ),
    (
        {
            "extraVolumes": [{"name": "cache", "emptyDir": {}}],
            "extraVolumeMounts": [
                {"name": "cache", "mountPath": "/cache"},
                {"name": "cahce", "mountPath": "/other"},
            ],
        },
        "extraVolumeMounts: volume cahce for /other",
    ),
    # The volume data exists only with training.enabled.
    ({"extraVolumeMounts": [{"name": "data", "mountPath": "/d"}]}, "volume data for /d"),
    (
        {"extraVolumeMounts": [{"name": "client-ca", "mountPath": "/ca"}]},
        "volume client-ca for /ca",
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
        "models.initContainers[1].volumeMounts: volume keys for /keys",
    ),
    ({"extraEnv": [{"name": "A", "value": 1 << 60}]}, "too large to be exact"),
    ({"service": {"nodePort": 30001}}, "service.nodePort: 30001 needs service.type NodePort or"),
    ({"ingress": {"enabled": True}}, "ingress.hosts: empty, but ingress.enabled is true"),
    ({"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}, "extraVolumes: tmp is already"),
    ({"extraVolumes": [{"name": "tokens", "emptyDir": {}}]}, "extraVolumes: tokens is already"),
    (
        {"podLabels": {"app.kubernetes.io/instance": "mine"}},
        "podLabels: app.kubernetes.io/instance is not allowed",
    ),
    (
        {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}},
        "service.loadBalancerSourceRanges: needs service.type LoadBalancer",
    ),
    ({"training": {"data": {"existingClaim": "a"}}}, "needs training.enabled"),
    (
        {"replicas": 2, "training": {"enabled": True, "data": {"existingClaim": "a"}}},
        "training.data.existingClaim: supports a single pod",
    ),
    (
        {"training": {"enabled": True}, "autoscaling": {"kind": "HorizontalPodAutoscaler"}},
        "autoscaling: would terminate pods with trainers",
    ),
    (
        {"autoscaling": {"kind": "HorizontalPodAutoscaler", "minReplicas": 9}},
        "autoscaling.minReplicas: is greater than autoscaling.maxReplicas",
    ),
    ({"autoscaling": {"kind": "ScaledObject"}}, "set autoscaling.prometheusAddress"),
    (
        {
            "test": {
                **TEST,
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [500, 500]}],
            }
        },
        "x has 1000000 bytes (at most 700000 fit in a ConfigMap)",
    ),
]

# Values that the schema rejects, and the key in the message.
INVALID = [
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
    ({"training": {"tracking": "/tracking"}}, "/training/tracking"),
    ({"jobs": {"maxRunning": 0}}, "/jobs/maxRunning"),
    ({"jobs": {"maxRunningPerIdentity": -1}}, "/jobs/maxRunningPerIdentity"),
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
def test_contradictory_values_are_rejected(values: dict, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        render_minimal(values)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("release", ["1rel", "my.release"])
def test_invalid_service_name_is_rejected(release: str) -> None:
    with pytest.raises(Refused) as refused:
        render_minimal(release=release)
    assert f"invalid Service name '{release}-braid'" in str(refused.value)
    named = render_minimal({"fullnameOverride": "mine"}, release=release)
    assert named.workload()["metadata"]["name"] == "mine"


@pytest.mark.parametrize("values, key", INVALID)
def test_schema_rejects_invalid_values(values: dict, key: str) -> None:
    with pytest.raises(Refused) as refused:
        render_minimal(values)
    assert "don't meet the specifications of the schema" in str(refused.value)
    assert key in str(refused.value)


@pytest.mark.parametrize(
    "limits", [{"memory": "8Gi"}, {"memory": 8589934592}, {"memory": "8.6G", "cpu": "2000m"}]
)
def test_limit_may_equal_request(limits: dict) -> None:
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
        ("max_running_jobs", "jobs.maxRunning"),
        ("max_running_jobs_per_identity", "jobs.maxRunningPerIdentity"),
        ("job_retention_days", "jobs.retentionDays"),
        ("dataset_quota", "jobs.uploads.quota"),
    ],
)
def test_ranges_match_the_server(flag: str, path: str) -> None:
    [(low, high)] = re.findall(
        rf'"--{flag}".*?->check\((?:Between|CLI::Range)\(([^,]+), (.+?)\)\)', FLAGS, re.DOTALL
    )
    value = json.loads((CHART / "values.schema.json").read_text())
    for key in path.split("."):
        value = value["properties"][key]

    def number(text: str) -> float:
        base, _, shift = re.sub(r"int64_t\{(\d+)\}", r"\1", text).partition(" << ")
        return float(base) * 2 ** int(shift or 0)

    assert (value["minimum"], value["maximum"]) == (number(low), number(high))


def test_log_modules_match_the_server() -> None:
    log = (ROOT / "server/telemetry/log.cc").read_text()
    [names] = re.findall(r"kModuleNames = \{(.*?)\};", log, re.DOTALL)
    *modules, audit = re.findall(r'"(\w+)"', names)
    assert audit == "audit"  # has no level
    schema = json.loads((CHART / "values.schema.json").read_text())
    pattern = schema["properties"]["server"]["properties"]["logLevel"]["pattern"]
    assert pattern.startswith(f"^(({'|'.join(modules)})=)?(")


def test_required_values_have_no_default() -> None:
    with pytest.raises(Refused, match="models: no source is set"):
        render({})
    with pytest.raises(Refused, match="auth: no client has access"):
        render({"models": MINIMAL["models"]})


def test_flags_set_by_the_chart_are_rejected_in_extra_args() -> None:
    # --data_root may be repeated.
    tried = {"--tf32", "--training_share=0", "--data_root=/datasets"}
    for path in MATRIX:
        values = yaml.safe_load(path.read_text())
        for flag in set(render(values).server()["args"]) - tried:
            with pytest.raises(Refused, match="another value of the chart sets it"):
                render(merge(values, {"server": {"extraArgs": [flag]}}))
            tried.add(flag)


def test_flags_that_the_chart_does_not_set_are_accepted_in_extra_args() -> None:
    flags = ["--tracking_dir=/shared", "--dataset_root=/shared", "--max_queued_jobs=10"]
    args = render_minimal({"training": {"enabled": True}, "server": {"extraArgs": flags}})
    assert set(flags) < set(args.server()["args"])


def undescribed(schema: dict, path: str = "") -> list[str]:
    """Returns the paths of properties without a description."""
    missing = [] if "description" in schema or not path or path.endswith("]") else [path]
    for key, value in schema.get("properties", {}).items():
        missing += undescribed(value, f"{path}.{key}")
    return missing


def test_every_value_is_described() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert undescribed(schema) == []


def test_values_and_schema_have_the_same_keys() -> None:
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
