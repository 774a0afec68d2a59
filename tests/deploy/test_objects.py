"""Tests of the chart's objects other than the pods."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from deploy.rendering import CHART, KUBERNETES_VERSIONS, ROOT, render_minimal
from deploy.validation import validate

TRAINING = {"training": {"enabled": True, "data": {"size": "7Gi", "storageClassName": "fast"}}}


def test_training_uses_a_stateful_set_with_volumes() -> None:
    manifests = render_minimal({**TRAINING, "replicas": 3})
    assert "Deployment" not in manifests.kinds()
    spec = manifests.of("StatefulSet")["spec"]
    assert (spec["replicas"], spec["serviceName"]) == (3, "braid-headless")
    [claim] = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "7Gi"}},
    }
    assert "--data_dir=/data" in manifests.server()["args"]


def test_existing_claim() -> None:
    manifests = render_minimal({"training": {"enabled": True, "data": {"existingClaim": "old"}}})
    assert "volumeClaimTemplates" not in manifests.of("StatefulSet")["spec"]
    claims = {"name": "data", "persistentVolumeClaim": {"claimName": "old"}}
    assert claims in manifests.pod()["volumes"]


def test_names_that_look_like_numbers_or_booleans_stay_strings() -> None:
    names = {
        "models": {"claimName": "1"},
        "auth": {"tokensSecret": "true"},
        "tls": {"secretName": "null"},
        "serviceAccount": {"name": "2e3"},
        "training": {"enabled": True, "data": {"size": "1000", "storageClassName": "no"}},
    }
    for manifest in render_minimal(names):
        validate(manifest, KUBERNETES_VERSIONS[0])


def test_version_matches_the_project() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    [version] = re.findall(r"^project\(braid VERSION (\S+)", cmake, re.MULTILINE)
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version


def test_services_select_the_servers_pods() -> None:
    manifests = render_minimal({"service": {"type": "NodePort", "annotations": {"a": "b"}}})
    service = manifests.of("Service", "braid")
    assert service["spec"]["type"] == "NodePort"
    assert service["metadata"]["annotations"] == {"a": "b"}
    assert [port["port"] for port in service["spec"]["ports"]] == [8001]
    headless = manifests.of("Service", "braid-headless")["spec"]
    assert headless["clusterIP"] == "None"
    assert {port["name"]: port["port"] for port in headless["ports"]} == {
        "grpc": 8001,
        "metrics": 8002,
    }


def test_load_balancer_source_ranges() -> None:
    ranges = ["10.0.0.0/8", "fd00::/8"]
    service = {"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}
    manifests = render_minimal({"service": service})
    assert manifests.of("Service", "braid")["spec"]["loadBalancerSourceRanges"] == ranges
    assert "loadBalancerSourceRanges" not in manifests.of("Service", "braid-headless")["spec"]
    assert "loadBalancerSourceRanges" not in render_minimal().of("Service", "braid")["spec"]


@pytest.mark.parametrize("kind", ["NodePort", "LoadBalancer"])
def test_node_port(kind: str) -> None:
    def ports(service: dict) -> list[dict]:
        return render_minimal({"service": service}).of("Service", "braid")["spec"]["ports"]

    assert ports({"type": kind, "nodePort": 30801}) == [
        {"name": "grpc", "port": 8001, "targetPort": "grpc", "nodePort": 30801}
    ]
    assert "nodePort" not in ports({"type": kind})[0]
    headless = render_minimal({"service": {"type": kind, "nodePort": 30801}})
    assert "nodePort" not in headless.of("Service", "braid-headless")["spec"]["ports"][0]


HOSTS = {"enabled": True, "hosts": [{"host": "braid.example.com"}]}


def test_no_ingress_by_default() -> None:
    assert "Ingress" not in render_minimal().kinds()
    assert 8001 in ingress(render_minimal().of("NetworkPolicy"))


def test_ingress_sends_grpc_to_the_service() -> None:
    tls = [{"secretName": "braid-ingress-tls"}]
    manifests = render_minimal({"ingress": {**HOSTS, "className": "nginx", "tls": tls}})
    found = manifests.of("Ingress", "braid")
    validate(found, KUBERNETES_VERSIONS[0])
    service = manifests.of("Service", "braid")
    [port] = service["spec"]["ports"]
    backend = {"service": {"name": service["metadata"]["name"], "port": {"name": port["name"]}}}
    assert found["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"secretName": "braid-ingress-tls", "hosts": ["braid.example.com"]}],
        "rules": [
            {
                "host": "braid.example.com",
                "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
            }
        ],
    }


def test_ingress_without_tls_or_class() -> None:
    assert render_minimal({"ingress": HOSTS}).of("Ingress")["spec"].keys() == {"rules"}


def test_ingress_with_paths_exposes_only_those() -> None:
    path = {"path": "/inference.GRPCInferenceService", "pathType": "Prefix"}
    hosts = [{"host": "a.example.com", "paths": [path]}, {"host": "*.b.example.com"}]
    tls = [{"secretName": "a", "hosts": ["a.example.com"]}, {"secretName": "b"}]
    values = {"ingress": {"enabled": True, "hosts": hosts, "tls": tls}}
    spec = render_minimal(values).of("Ingress")["spec"]
    [only], [all_paths] = (rule["http"]["paths"] for rule in spec["rules"])
    assert (only["path"], only["pathType"]) == (path["path"], "Prefix")
    assert all_paths["path"] == "/"
    assert [entry["hosts"] for entry in spec["tls"]] == [
        ["a.example.com"],
        ["a.example.com", "*.b.example.com"],
    ]


PROTOCOL = "nginx.ingress.kubernetes.io/backend-protocol"


def test_ingress_protocol_matches_the_server() -> None:
    def annotations(values: dict) -> dict:
        return render_minimal(values).of("Ingress")["metadata"]["annotations"]

    plaintext = {"tls": {"secretName": "", "terminatedInFront": True}}
    assert annotations({"ingress": HOSTS}) == {PROTOCOL: "GRPCS"}
    assert annotations({"ingress": HOSTS, **plaintext}) == {PROTOCOL: "GRPC"}
    own = {"a": "b", PROTOCOL: "HTTPS"}
    assert annotations({"ingress": {**HOSTS, "annotations": own}}) == own


def test_network_policy_admits_the_ingress_controller() -> None:
    controllers = [{"podSelector": {"matchLabels": {"app": "traefik"}}}]
    for values, expected in (
        ({}, [{"namespaceSelector": {"matchLabels": {
            "kubernetes.io/metadata.name": "ingress-nginx"}}}]),
        ({"ingressControllers": controllers}, controllers),
    ):  # fmt: skip
        policy = {"networkPolicy": {"clients": [], **values}}
        rendered = render_minimal({**policy, "ingress": HOSTS})
        assert ingress(rendered.of("NetworkPolicy"))[8001] == expected
        assert 8001 not in ingress(render_minimal(policy).of("NetworkPolicy"))


def test_update_strategy_is_valid() -> None:
    def strategy(values: dict) -> dict:
        return render_minimal({"strategy": values}).of("Deployment")["spec"]["strategy"]

    default = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert strategy({}) == default
    # Kubernetes rejects rollingUpdate with the type Recreate.
    assert strategy({"type": "Recreate"}) == {"type": "Recreate"}
    surge = {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}
    assert strategy(surge) == {"type": "RollingUpdate", **surge}
    # The strategy does not apply to a StatefulSet.
    still = {"rollingUpdate": {"maxUnavailable": 0}}
    assert render_minimal({"strategy": still, "training": {"enabled": True}}).of("StatefulSet")


def test_large_numbers_are_written_in_full() -> None:
    large = {
        "replicas": 3000000,
        "drain": {"preStopSeconds": 5000000, "marginSeconds": 2000000},
        "podDisruptionBudget": {"maxUnavailable": 1000000},
    }
    manifests = render_minimal(large)
    assert manifests.workload()["spec"]["replicas"] == 3000000
    assert manifests.server()["lifecycle"]["preStop"]["sleep"]["seconds"] == 5000000
    assert manifests.of("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1000000
    scaled = {"kind": "HorizontalPodAutoscaler", "maxReplicas": 2000000}
    manifests = render_minimal({"autoscaling": {**scaled, "queueMilliseconds": 2000000}})
    spec = manifests.of("HorizontalPodAutoscaler")["spec"]
    assert spec["maxReplicas"] == 2000000
    assert spec["metrics"][0]["pods"]["target"]["averageValue"] == "2000000m"
    for manifest in [*render_minimal(large), *manifests]:
        validate(manifest, KUBERNETES_VERSIONS[0])


def ingress(policy: dict) -> dict[int, list]:
    """Returns the admitted peers by port."""
    return {rule["ports"][0]["port"]: rule["from"] for rule in policy["spec"]["ingress"] or []}


def test_network_policy_admits_clients_and_monitoring() -> None:
    peer = {"ipBlock": {"cidr": "10.0.0.0/8"}}
    egress = {"ports": [{"port": 443}]}
    values = {"clients": [peer], "monitoring": [], "extraEgress": [egress]}
    policy = render_minimal({"networkPolicy": values}).of("NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert ingress(policy) == {8001: [peer]}
    dns, extra = policy["spec"]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert extra == egress


def test_network_policy_admits_only_labelled_pods_of_the_namespace_by_default() -> None:
    # A peer without a namespaceSelector means the policy's namespace.
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    assert ingress(render_minimal().of("NetworkPolicy")) == {
        8001: [{"podSelector": {"matchLabels": {"braid-client": "true"}}}],
        8002: [{"namespaceSelector": {"matchLabels": monitoring}}],
    }


def test_network_policy_without_peers_admits_nobody() -> None:
    # A rule without peers would admit all clients.
    values = {"clients": [], "monitoring": []}
    assert ingress(render_minimal({"networkPolicy": values}).of("NetworkPolicy")) == {}


def test_disruption_budget() -> None:
    values = {"podDisruptionBudget": {"maxUnavailable": "25%"}}
    assert render_minimal(values).of("PodDisruptionBudget")["spec"]["maxUnavailable"] == "25%"
    disabled = render_minimal({"podDisruptionBudget": {"enabled": False}})
    assert "PodDisruptionBudget" not in disabled.kinds()


def test_service_account() -> None:
    own = render_minimal({"serviceAccount": {"annotations": {"a": "b"}}})
    account = own.of("ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["annotations"] == {"a": "b"}
    assert own.pod()["serviceAccountName"] == account["metadata"]["name"]
    given = render_minimal({"serviceAccount": {"name": "given"}})
    assert "ServiceAccount" not in given.kinds()
    assert given.pod()["serviceAccountName"] == "given"


def test_horizontal_pod_autoscaler() -> None:
    values = {"kind": "HorizontalPodAutoscaler", "minReplicas": 2, "queueMilliseconds": 12}
    manifests = render_minimal({"autoscaling": values})
    spec = manifests.of("HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    [metric] = spec["metrics"]
    assert metric["pods"] == {
        "metric": {"name": "braid_queue_seconds"},
        "target": {"type": "AverageValue", "averageValue": "12m"},
    }
    # Otherwise every upgrade would reset the number of replicas.
    assert "replicas" not in manifests.of("Deployment")["spec"]


def test_scaled_object() -> None:
    values = {"kind": "ScaledObject", "prometheusAddress": "http://p:9090"}
    manifests = render_minimal({"autoscaling": {**values, "queueMilliseconds": 250}})
    [trigger] = manifests.of("ScaledObject")["spec"]["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("Value", "0.25")
    assert queried_pods(trigger["metadata"]["query"])


def queried_pods(query: str) -> str:
    [pattern] = set(re.findall(r'{namespace="models",pod=~"([^"]*)"}', query))
    return pattern


@pytest.mark.parametrize(
    ("release", "pod", "scaled"),
    [
        ("braid", "braid-7d9f8b6c5d-x2x4x", True),
        ("braid", "braid-84b7-bcdfg", True),
        # Pods of a StatefulSet and of a Deployment of other releases.
        ("braid", "braid-train-0", False),
        ("braid", "braid-train-7d9f8b6c5d-x2x4x", False),
        ("braid", "braid-2-7d9f8b6c5d-x2x4x", False),
        ("braid-train", "braid-train-7d9f8b6c5d-x2x4x", True),
        # Kubernetes truncates names to 58 characters before it adds the last five.
        ("braid" * 10, "braid" * 10 + "-7d9f8b6x2x4x", True),
    ],
)
def test_scaled_object_queries_its_own_pods(release: str, pod: str, scaled: bool) -> None:
    values = {"kind": "ScaledObject", "prometheusAddress": "http://p:9090"}
    manifests = render_minimal({"autoscaling": values}, release=release)
    [trigger] = manifests.of("ScaledObject")["spec"]["triggers"]
    pattern = queried_pods(trigger["metadata"]["query"])
    assert (re.fullmatch(pattern, pod) is not None) is scaled


def test_autoscaling_queries_existing_metrics() -> None:
    values = {"kind": "ScaledObject", "prometheusAddress": "http://p:9090"}
    [trigger] = render_minimal({"autoscaling": values}).of("ScaledObject")["spec"]["triggers"]
    names = set(re.findall(r"braid_\w+", trigger["metadata"]["query"]))
    assert names == {"braid_queue_rows", "braid_inference_samples_total"}
    tables = "".join(path.read_text() for path in (ROOT / "server/telemetry").rglob("*.h"))
    assert all(f'"{name}"' in tables for name in names)


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor"])
def test_monitors_select_the_metrics_port(kind: str) -> None:
    values = {"monitor": kind, "interval": "7s", "labels": {"release": "p"}}
    manifests = render_minimal({"metrics": values})
    monitor = manifests.of(kind)
    assert monitor["metadata"]["labels"]["release"] == "p"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    if kind == "ServiceMonitor":
        [endpoint] = monitor["spec"]["endpoints"]
        found = [m for m in manifests if wanted <= m["metadata"]["labels"].items()]
        assert [m["metadata"]["name"] for m in found] == ["braid-headless"]
        ports = found[0]["spec"]["ports"]
    else:
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        template = manifests.workload()["spec"]["template"]
        assert wanted <= template["metadata"]["labels"].items()
        ports = manifests.server()["ports"]
    assert (endpoint["port"], endpoint["interval"]) == ("metrics", "7s")
    [relabeling] = endpoint["relabelings"]
    assert relabeling["targetLabel"] == "instance"
    assert "metrics" in [port["name"] for port in ports]


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """Returns a copy of the chart without dashboards and rules."""
    copy = tmp_path / "braid"
    shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("*.json", "*.rules.yaml"))
    shutil.copy(CHART / "values.schema.json", copy)
    return copy


RULES = {"metrics": {"rules": {"enabled": True}, "labels": {"release": "p"}}}


def test_chart_renders_without_dashboards_and_rules(chart: Path) -> None:
    assert not {"ConfigMap", "PrometheusRule"} & render_minimal(RULES, chart=chart).kinds()


def test_dashboards_are_not_changed(chart: Path) -> None:
    dashboards = {"Braid_GPU.json": '{"a": "{{device}}"}\n', "braid.json": '{"b":\n  [1]\n}'}
    for name, text in dashboards.items():
        (chart / "dashboards" / name).write_text(text)
    folder = {"grafana_folder": "Braid"}
    values = {"metrics": {"dashboards": {"annotations": folder}}}
    manifests = render_minimal(values, chart=chart)
    found = [manifest for manifest in manifests if manifest["kind"] == "ConfigMap"]
    names = {manifest["metadata"]["name"] for manifest in found}
    assert names == {"braid-dashboard-braid-gpu", "braid-dashboard-braid"}
    read = {}
    for manifest in found:
        validate(manifest, KUBERNETES_VERSIONS[0])
        assert manifest["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert manifest["metadata"]["annotations"] == folder
        read.update(manifest["data"])
    assert {name: json.loads(text) for name, text in read.items()} == {
        name: json.loads(text) for name, text in dashboards.items()
    }
    off = {"metrics": {"dashboards": {"enabled": False}}}
    assert "ConfigMap" not in render_minimal(off, chart=chart).kinds()


def test_rules_are_not_changed(chart: Path) -> None:
    def group(name: str) -> dict:
        annotations = {"summary": "{{ $labels.pod }} waits for {{ $value }} s"}
        rule = {"alert": "A", "expr": "up == 0", "for": "5m", "annotations": annotations}
        return {"name": name, "rules": [rule]}

    for name in ("a", "b"):
        text = yaml.safe_dump({"groups": [group(name)]})
        (chart / "rules" / f"{name}.rules.yaml").write_text(text)
    rule = render_minimal(RULES, chart=chart).of("PrometheusRule")
    validate(rule, KUBERNETES_VERSIONS[0])
    assert rule["spec"]["groups"] == [group("a"), group("b")]
    assert rule["metadata"]["labels"]["release"] == "p"
    assert "PrometheusRule" not in render_minimal(chart=chart).kinds()


@pytest.mark.parametrize(
    "source, pattern, copy",
    [("grafana/dashboards", "*.json", "dashboards"), ("prometheus", "*.rules.yaml", "rules")],
)
def test_chart_has_copies_of_dashboards_and_rules(source: str, pattern: str, copy: str) -> None:
    def read(directory: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in directory.glob(pattern)}

    assert read(CHART / copy) == read(ROOT / "deploy" / source) != {}
