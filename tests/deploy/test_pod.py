"""Tests of the server's pod in the chart."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from e2e.support.server import BINARY

from deploy.rendering import CHART, KUBERNETES_VERSIONS, MATRIX, merge, render, render_minimal
from deploy.validation import validate


def args(more: dict | None = None) -> list[str]:
    return render_minimal(more).server()["args"]


def volume(pod: dict, name: str) -> dict:
    return next(volume for volume in pod["volumes"] if volume["name"] == name)


def mount(container: dict, path: str) -> dict:
    return next(mount for mount in container["volumeMounts"] if mount["mountPath"] == path)


def test_args_are_flags_of_the_server() -> None:
    if not BINARY.exists():
        pytest.skip(f"no {BINARY}: run scripts/setup.sh")
    described = subprocess.run([BINARY, "--help"], capture_output=True, text=True).stdout
    known = {word.rstrip(",") for word in described.split() if word.startswith("--")}
    for values in MATRIX:
        used = {flag.split("=")[0] for flag in render(values).server()["args"]}
        assert used <= known


def test_minimal_values_use_tokens_tls_and_one_gpu() -> None:
    manifests = render_minimal()
    server = manifests.server()
    assert {"--listen=0.0.0.0", "--devices=cuda"} <= set(server["args"])
    assert {"--auth_tokens=/etc/braid/tokens/tokens", "--tls_cert=/etc/braid/tls/tls.crt",
            "--tls_key=/etc/braid/tls/tls.key"} <= set(server["args"])  # fmt: skip
    others = ("--data", "--allow", "--tls_client_ca", "--tls_terminated", "--max_c")
    assert not [flag for flag in server["args"] if flag.startswith(others)]
    assert server["resources"]["limits"] == {"memory": "16Gi", "nvidia.com/gpu": 1}
    assert server["image"] == "braid:0.1.0"
    assert manifests.workload()["kind"] == "Deployment"


def test_names_include_the_release() -> None:
    assert render_minimal(release="braid-eu").workload()["metadata"]["name"] == "braid-eu"
    assert render_minimal(release="prod").workload()["metadata"]["name"] == "prod-braid"
    named = render_minimal({"fullnameOverride": "x"}, release="prod")
    assert named.workload()["metadata"]["name"] == "x"


@pytest.mark.parametrize(
    "seconds, failures", [(600, 120), (601, 121), (1, 1), (5000000, 1000000)]
)
def test_startup_probe_covers_loading(seconds: int, failures: int) -> None:
    manifests = render_minimal({"startup": {"seconds": seconds}})
    probe = manifests.server()["startupProbe"]
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (5, failures)
    assert isinstance(probe["failureThreshold"], int)
    assert manifests.workload()["spec"]["progressDeadlineSeconds"] > seconds


@pytest.mark.parametrize("values", MATRIX, ids=lambda path: path.name)
def test_probes_use_the_plaintext_port(values: Path) -> None:
    server = render(values).server()
    assert "--health_port=8003" in server["args"]
    for probe, service in (
        ("startupProbe", "readiness"),
        ("readinessProbe", "readiness"),
        ("livenessProbe", "liveness"),
    ):
        assert server[probe]["grpc"] == {"port": 8003, "service": service}


def test_grace_period_is_the_sum_of_the_drain_values() -> None:
    drain = {"preStopSeconds": 1, "delaySeconds": 20, "timeoutSeconds": 300, "marginSeconds": 4000}
    manifests = render_minimal({"drain": drain})
    assert manifests.pod()["terminationGracePeriodSeconds"] == 4321
    server = manifests.server()
    assert server["lifecycle"] == {"preStop": {"sleep": {"seconds": 1}}}
    assert {"--drain_delay=20", "--drain_timeout=300"} <= set(server["args"])


def test_pre_stop_hook_is_omitted_for_zero_seconds() -> None:
    # Older versions of Kubernetes reject a sleep of 0 seconds.
    assert "lifecycle" not in render_minimal({"drain": {"preStopSeconds": 0}}).server()


def test_gpus_are_added_to_the_limits() -> None:
    gpu = {"count": 4, "resource": "nvidia.com/mig-3g.40gb", "runtimeClassName": "nvidia"}
    manifests = render_minimal({"gpu": gpu, "resources": {"limits": {"memory": "64Gi"}}})
    resources = manifests.server()["resources"]
    assert resources["limits"] == {"memory": "64Gi", "nvidia.com/mig-3g.40gb": 4}
    assert "nvidia.com/mig-3g.40gb" not in resources["requests"]
    assert manifests.pod()["runtimeClassName"] == "nvidia"


def test_no_gpu_limit_without_gpus() -> None:
    server = render_minimal({"gpu": {"count": 0}}).server()
    assert server["resources"]["limits"] == {"memory": "16Gi"}
    assert "--devices=cpu*2" in server["args"]


def test_shared_memory_is_a_memory_volume() -> None:
    manifests = render_minimal({"sharedMemory": {"sizeLimit": "4Gi"}})
    assert volume(manifests.pod(), "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert mount(manifests.server(), "/dev/shm")["name"] == "shm"


def test_data_of_jobs_from_a_claim() -> None:
    manifests = render_minimal(
        {
            "training": {"enabled": True},
            "jobs": {
                "dataClaim": "tables",
                "dataSubPath": "a/b",
                "maxRunning": 2,
                "maxRunningPerIdentity": 1,
            },
        }
    )
    claim = volume(manifests.pod(), "datasets")["persistentVolumeClaim"]
    assert claim == {"claimName": "tables", "readOnly": True}
    datasets = mount(manifests.server(), "/datasets")
    assert (datasets["subPath"], datasets["readOnly"]) == ("a/b", True)
    flags = {
        "--data_root=/datasets",
        "--max_running_jobs=2",
        "--max_running_jobs_per_identity=1",
        "--job_retention_days=30",
    }
    assert flags < set(manifests.server()["args"])


def test_limits_of_jobs_do_not_need_a_claim() -> None:
    jobs = {"maxRunning": 2, "retentionDays": 7}
    args = render_minimal({"training": {"enabled": True}, "jobs": jobs}).server()["args"]
    assert {"--max_running_jobs=2", "--job_retention_days=7"} < set(args)
    assert not [flag for flag in args if flag.startswith("--max_running_jobs_per_identity")]
    inference = render_minimal({"jobs": jobs}).server()["args"]
    assert not [flag for flag in inference if "job" in flag]


def test_metrics_of_training_steps_are_written_to_the_volume() -> None:
    server = render_minimal({"training": {"enabled": True, "tracking": True}}).server()
    assert {"--data_dir=/data", "--tracking_dir=/data/tracking"} < set(server["args"])
    off = render_minimal({"training": {"enabled": True}}).server()
    assert not [flag for flag in off["args"] if flag.startswith("--tracking_dir")]


def test_uploaded_datasets_have_a_volume_per_pod() -> None:
    uploads = {"size": "500Gi", "storageClassName": "fast", "quota": 400_000_000_000}
    manifests = render_minimal({"training": {"enabled": True}, "jobs": {"uploads": uploads}})
    flags = {"--dataset_root=/uploads", "--dataset_quota=400000000000", "--max_running_jobs=1"}
    assert flags < set(manifests.server()["args"])
    assert mount(manifests.server(), "/uploads")["name"] == "uploads"
    data, claim = manifests.of("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert (data["metadata"]["name"], claim["metadata"]["name"]) == ("data", "uploads")
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "500Gi"}


def test_uploaded_datasets_in_an_existing_claim() -> None:
    jobs = {"uploads": {"existingClaim": "sets"}}
    manifests = render_minimal({"training": {"enabled": True}, "jobs": jobs})
    claim = volume(manifests.pod(), "uploads")["persistentVolumeClaim"]
    assert claim == {"claimName": "sets"}
    [data] = manifests.of("StatefulSet")["spec"]["volumeClaimTemplates"]
    assert data["metadata"]["name"] == "data"


def test_models_from_a_claim() -> None:
    manifests = render_minimal({"models": {"claimSubPath": "a/b"}})
    claim = volume(manifests.pod(), "models")["persistentVolumeClaim"]
    assert claim == {"claimName": "braid-models", "readOnly": True}
    models = mount(manifests.server(), "/models")
    assert (models["subPath"], models["readOnly"]) == ("a/b", True)


def test_models_from_a_config_map() -> None:
    config_map = {"name": "small", "items": [{"key": "m", "path": "m/1/model.pt"}]}
    manifests = render_minimal({"models": {"claimName": "", "configMap": config_map}})
    assert volume(manifests.pod(), "models")["configMap"] == config_map


def test_models_from_init_containers() -> None:
    containers = [
        {"name": "a", "image": "a:1", "command": ["a"]},
        {"name": "b", "image": "b:1", "volumeMounts": [{"name": "x", "mountPath": "/x"}]},
    ]
    models = {"claimName": "", "initContainers": containers}
    extra = [{"name": "x", "emptyDir": {}}]
    manifests = render_minimal({"models": models, "extraVolumes": extra})
    first, second = manifests.pod()["initContainers"]
    assert (first["name"], first["command"], second["name"]) == ("a", ["a"], "b")
    for container in (first, second):
        assert mount(container, "/models") == {"name": "models", "mountPath": "/models"}
        assert mount(container, "/tmp")["name"] == "tmp"
    assert mount(second, "/x")["name"] == "x"
    assert volume(manifests.pod(), "models")["emptyDir"] == {}
    assert mount(manifests.server(), "/models")["readOnly"] is True


def test_secrets_are_mounted_as_folders() -> None:
    access = {
        "tls": {"secretName": "server", "clientCASecret": "ca"},
        "auth": {"tokensSecret": "tokens", "certificatesSecret": "certificates"},
    }
    manifests = render_minimal(access)
    server = manifests.server()
    for flag, path, secret in (
        ("--tls_cert", "/etc/braid/tls/tls.crt", "server"),
        ("--tls_key", "/etc/braid/tls/tls.key", "server"),
        ("--tls_client_ca", "/etc/braid/client-ca/ca.crt", "ca"),
        ("--auth_tokens", "/etc/braid/tokens/tokens", "tokens"),
        ("--auth_certificates", "/etc/braid/certificates/certificates", "certificates"),
    ):
        assert f"{flag}={path}" in server["args"]
        mounted = mount(server, path.rsplit("/", 1)[0])
        assert mounted["readOnly"] is True
        assert "subPath" not in mounted
        source = volume(manifests.pod(), mounted["name"])["secret"]
        # Readable only for the group, the pods' fsGroup.
        assert (source["secretName"], source["defaultMode"]) == (secret, 0o440)
    assert volume(manifests.pod(), "client-ca")["secret"]["items"] == [
        {"key": "ca.crt", "path": "ca.crt"}
    ]
    # No checksum annotation, because the server reloads changed Secrets without a restart.
    assert "annotations" not in manifests.workload()["spec"]["template"]["metadata"]


def test_allow_unauthenticated_is_off_by_default() -> None:
    for values in MATRIX:
        consents = yaml.safe_load(values.read_text())["auth"].get("allowUnauthenticated", False)
        assert ("--allow_unauthenticated" in render(values).server()["args"]) is consents


def test_tokens_behind_a_tls_proxy() -> None:
    manifests = render_minimal({"tls": {"secretName": "", "terminatedInFront": True}})
    flags = manifests.server()["args"]
    assert {"--tls_terminated_in_front", "--auth_tokens=/etc/braid/tokens/tokens"} <= set(flags)
    assert not [flag for flag in flags if flag.startswith(("--tls_cert", "--tls_key", "--allow"))]
    secrets = [volume["name"] for volume in manifests.pod()["volumes"] if "secret" in volume]
    assert secrets == ["tokens"]


def test_log_format_defaults_to_json() -> None:
    assert {"--log_format=json", "--log_level=info"} <= set(args())
    log = {"logFormat": "text", "logLevel": "warning,training=debug,access=info"}
    told = args({"server": log})
    assert "--log_format=text" in told
    assert "--log_level=warning,training=debug,access=info" in told


def test_server_values_become_flags() -> None:
    server = {"devices": "cuda:0*2", "modelControlMode": "explicit", "loadModels": ["a", "b"]}
    flags = args({"server": {**server, "extraArgs": ["--tf32"], "maxConnectionAge": 86400}})
    assert {"--devices=cuda:0*2", "--model_control_mode=explicit", "--load_model=a",
            "--load_model=b", "--tf32", "--max_connection_age=86400"} <= set(flags)  # fmt: skip
    limits = {"maxClientRequests": 7, "maxClientRequestBytes": 1 << 40}
    assert {"--max_client_requests=7", "--max_client_request_bytes=1099511627776"} <= set(
        args({"server": limits})
    )
    polled = args({"server": {"modelControlMode": "poll", "repositoryPollSeconds": 0.5}})
    assert "--repository_poll_seconds=0.5" in polled


def test_additions_to_the_pod_are_rendered() -> None:
    added = {
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraVolumes": [{"name": "v", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "v", "mountPath": "/v"}],
        "nodeSelector": {"disk": "fast"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "image": {"repository": "r/b", "tag": "7", "pullSecrets": [{"name": "p"}]},
    }
    manifests = render_minimal(added)
    pod, server = manifests.pod(), manifests.server()
    assert {"name": "A", "value": "b"} in server["env"]
    assert volume(pod, "v") and mount(server, "/v")
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["imagePullSecrets"] == [{"name": "p"}]
    assert server["image"] == "r/b:7"


@pytest.mark.parametrize(
    "value, text",
    [
        (4, "4"),
        (-1, "-1"),
        (0, "0"),
        (1000000, "1000000"),
        (12345678901, "12345678901"),
        (0.5, "0.5"),
        (True, "true"),
        (False, "false"),
        ("", ""),
        ("4", "4"),
        ("1e3", "1e3"),
        ("yes", "yes"),
        ("0x1F", "0x1F"),
        ("007", "007"),
        ("1:30", "1:30"),
        ("null", "null"),
        ("{{ a }}: b", "{{ a }}: b"),
    ],
)
def test_environment_variables_are_strings(value: object, text: str) -> None:
    env = [{"name": "A", "value": value}]
    container = {"name": "a", "image": "a:1", "env": env, "command": ["x"], "args": [value]}
    models = {"claimName": "", "initContainers": [container]}
    manifests = render_minimal({"extraEnv": env, "models": models})
    assert {"name": "A", "value": text} in manifests.server()["env"]
    [init] = manifests.pod()["initContainers"]
    assert init["env"] == [{"name": "A", "value": text}]
    assert (init["command"], init["args"]) == (["x"], [text])
    validate(manifests.workload(), KUBERNETES_VERSIONS[0])


def test_environment_variables_with_value_from_are_rendered() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    env = [{"name": "A", "valueFrom": source}, {"name": "B"}]
    assert render_minimal({"extraEnv": env}).server()["env"][1:] == env


def test_fs_group() -> None:
    def context(values: dict) -> dict:
        return render_minimal({"podSecurityContext": values}).pod()["securityContext"]

    default = context({})
    assert (default["fsGroup"], default["fsGroupChangePolicy"]) == (10001, "OnRootMismatch")
    assert "supplementalGroups" not in default
    own = {"fsGroup": 1000650000, "fsGroupChangePolicy": "Always", "supplementalGroups": [2000000]}
    assert context(own) == {**default, **own}
    assert context({"fsGroup": 0})["fsGroup"] == 0
    # Null removes the default, for clusters that assign a group.
    assert not {"fsGroup", "fsGroupChangePolicy"} & context({"fsGroup": None}).keys()


def test_test_pod_has_the_fs_group() -> None:
    test = {"model": "mlp", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    values = {"test": {**test, "tokenSecret": "token"}, "podSecurityContext": {"fsGroup": 7}}
    assert render_minimal(values).of("Pod")["spec"]["securityContext"]["fsGroup"] == 7


def test_extra_mounts_of_existing_volumes() -> None:
    mounts = [
        {"name": "tokens", "mountPath": "/tokens", "subPath": "tokens"},
        {"name": "models", "mountPath": "/other/models"},
        {"name": "v", "mountPath": "/v"},
    ]
    values = {"extraVolumes": [{"name": "v", "emptyDir": {}}], "extraVolumeMounts": mounts}
    server = render_minimal(values).server()
    assert [mount(server, m["mountPath"]) for m in mounts] == mounts
    data = {"extraVolumeMounts": [{"name": "data", "mountPath": "/d"}]}
    claims: list[dict] = [{}, {"data": {"existingClaim": "old"}}]
    for claim in claims:
        manifests = render_minimal({**data, "training": {"enabled": True, **claim}})
        assert mount(manifests.server(), "/d")["name"] == "data"


def test_pod_labels_annotations_and_scheduling() -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    selector = {"matchLabels": {"team": "vision"}}
    added = {
        "podAnnotations": {"sidecar.istio.io/proxyCPU": "100m"},
        "podLabels": {"sidecar.istio.io/inject": "true"},
        "priorityClassName": "serving",
        "topologySpreadConstraints": [spread, {**spread, "labelSelector": selector}],
    }
    for training in (False, True):
        manifests = render_minimal({**added, "training": {"enabled": training}})
        spec = manifests.workload()["spec"]
        metadata, pod = spec["template"]["metadata"], manifests.pod()
        assert metadata["annotations"] == added["podAnnotations"]
        ours = spec["selector"]["matchLabels"]
        assert metadata["labels"] == {**ours, **added["podLabels"]}
        assert pod["priorityClassName"] == "serving"
        assert pod["topologySpreadConstraints"] == [
            {**spread, "labelSelector": {"matchLabels": ours}},
            {**spread, "labelSelector": selector},
        ]
        for manifest in manifests:
            validate(manifest, KUBERNETES_VERSIONS[0])


def test_image_digest_replaces_the_tag() -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"
    image = {"repository": "r/b", "tag": "7", "digest": digest}
    test = {"model": "mlp", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    test["tokenSecret"] = "token"
    manifests = render_minimal({"image": image, "test": test})
    assert manifests.server()["image"] == f"r/b@{digest}"
    assert manifests.of("Pod")["spec"]["containers"][0]["image"] == f"r/b@{digest}"


def test_new_chart_version_does_not_change_the_pod_template(tmp_path) -> None:
    newer = tmp_path / "braid"
    newer.mkdir()
    for path in CHART.iterdir():
        (newer / path.name).symlink_to(path)
    (newer / "Chart.yaml").unlink()
    chart = (CHART / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(chart.replace("\nversion: ", "\nversion: 9"))
    pods = [render_minimal(chart=chart).workload()["spec"]["template"] for chart in (CHART, newer)]
    assert pods[0] == pods[1]


def test_merge_works_like_helm() -> None:
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
