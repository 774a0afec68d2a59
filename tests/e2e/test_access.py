"""Authorization: tokens, roles and models, and the errors for callers without permission."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from e2e.support import auth, protocol
from e2e.support.metrics import scrape
from e2e.support.polling import wait_until
from e2e.support.server import Server
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

# Role that each method requires: "" for none, "any" for any identity.
NEEDS = {
    "ServerLive": "",
    "ServerReady": "",
    "ServerMetadata": "any",
    "ModelReady": "any",
    "ModelMetadata": "any",
    "ModelConfig": "any",
    "ModelStatistics": "any",
    "RepositoryIndex": "any",
    "TraceSetting": "any",
    "LogSettings": "any",
    "ListTrainers": "any",
    "ListDevices": "any",
    "ModelInfer": "infer",
    "ModelStreamInfer": "infer",
    "SystemSharedMemoryStatus": "infer",
    "SystemSharedMemoryRegister": "infer",
    "SystemSharedMemoryUnregister": "infer",
    "CudaSharedMemoryStatus": "infer",
    "CudaSharedMemoryRegister": "infer",
    "CudaSharedMemoryUnregister": "infer",
    "GetDataset": "any",
    "ListDatasets": "any",
    "PreviewDataset": "any",
    "StartDatasetUpload": "admin",
    "PutDataset": "admin",
    "DeleteDataset": "admin",
    # Training jobs need the role train; the others look at the job's model.
    "SubmitJob": "infer",
    "GetJob": "any",
    "ListJobs": "any",
    "WatchJob": "any",
    "PauseJob": "any",
    "ResumeJob": "any",
    "CancelJob": "any",
    "DeleteJob": "any",
    "GetJobMetrics": "any",
    "GetJobLogs": "any",
    "RepositoryModelLoad": "admin",
    "RepositoryModelUnload": "admin",
    "CreateTrainer": "train",
    "GetTrainer": "train",
    "DeleteTrainer": "train",
    "Step": "train",
    "ForwardBackward": "train",
    "OptimStep": "train",
    "Forward": "train",
    "Backward": "train",
    "Stream": "train",
    "Evaluate": "train",
    "SaveCheckpoint": "train",
    "RestoreCheckpoint": "train",
    "ListCheckpoints": "train",
    "GetHistory": "train",
    "ForkTrainer": "train",
    "ReplayTrainer": "train",
    "Publish": "train",
    "Rollback": "train",
    "GetStateDict": "train",
    "DownloadModel": "train",
    "ListVersions": "any",
    "Pin": "admin",
    "Unpin": "admin",
    "SetLabel": "admin",
    "DeleteVersion": "admin",
    "ReserveVersion": "admin",
    "UploadVersion": "admin",
}
MINE, OTHERS = "mine", "others"
IDENTITIES = {
    "infer": "infer",
    "train": "train",
    "admin": "admin",
    "infer-mine": f"infer:{MINE}",
    "train-mine": f"train:{MINE}",
    "admin-mine": f"admin:{MINE}",
}


def token_of(name: str) -> str:
    return f"token-of-{name}"


def as_(name: str) -> list[tuple[str, str]]:
    return auth.bearer(token_of(name))


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("access")
    for name in (MINE, OTHERS):
        auth.export_model(directory / "models" / name)
    lines = [auth.token_line(grants, token_of(name), name) for name, grants in IDENTITIES.items()]
    (directory / "tokens").write_text("# who may do what\n\n" + "".join(lines))
    with Server(
        directory / "models",
        "cpu*1",
        directory / "run",
        (
            f"--auth_tokens={directory / 'tokens'}",
            "--model_control_mode=explicit",
            "--load_model=*",
            "--allow_client_shared_memory",
        ),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[grpc.Channel]:
    with protocol.channel(server.address) as on:
        for model in (MINE, OTHERS):
            create_trainer(on, model, as_("admin"))
        yield on


def create_trainer(on: grpc.Channel, model: str, metadata: list) -> None:
    request = protocol.message("braid.v1.CreateTrainerRequest")(model=model, name=f"on-{model}")
    request.losses.add(name="mse")
    request.optimizer.sgd.lr = 0.1
    auth.call(on, auth.METHODS["CreateTrainer"], request, metadata)


def set_verbosity(level: int) -> object:
    request = protocol.message("inference.LogSettingsRequest")()
    request.settings["log_verbose_level"].uint32_param = level
    return request


def test_expected_roles_cover_every_method() -> None:
    assert set(NEEDS) == set(auth.METHODS)


def test_reflection_lists_no_other_service(channel: grpc.Channel) -> None:
    services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
    assert services == {
        *auth.SERVICES,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


@pytest.mark.parametrize("name", sorted(NEEDS))
def test_method_requires_its_role(channel: grpc.Channel, name: str) -> None:
    request = auth.request_naming(auth.METHODS[name], "no-such-model", "no-such-trainer")
    need = NEEDS[name]
    for metadata in ([], auth.bearer("guessed"), auth.bearer("")):
        code, message = auth.outcome(channel, auth.METHODS[name], request, metadata)
        assert code == ("UNAUTHENTICATED" if need else "OK"), message
        assert "guessed" not in message
    for role in ("infer", "train", "admin"):
        code, message = auth.outcome(channel, auth.METHODS[name], request, as_(role))
        if need in ("", "any", role) or role == "admin":
            assert code not in ("UNAUTHENTICATED", "PERMISSION_DENIED"), message
        else:
            assert code == "PERMISSION_DENIED", message
            assert f"the role {need}" in message
            assert name in message


OF_A_MODEL = sorted(
    name
    for name, method in auth.METHODS.items()
    if NEEDS[name] in ("infer", "train")
    and "SharedMemory" not in name
    and name != "SubmitJob"
    and method.input_type.name != "StreamRequest"
)


@pytest.mark.parametrize("name", [*OF_A_MODEL, "Stream"])
def test_model_role_is_denied_for_other_models(channel: grpc.Channel, name: str) -> None:
    role = NEEDS[name]
    request = auth.request_naming(auth.METHODS[name], OTHERS, f"on-{OTHERS}")
    code, message = auth.outcome(channel, auth.METHODS[name], request, as_(f"{role}-mine"))
    if name == "ModelStreamInfer":
        reply = auth.call(channel, auth.METHODS[name], request, as_(f"{role}-mine"))
        code, message = "PERMISSION_DENIED", reply.error_message
    assert code == "PERMISSION_DENIED", message
    assert f"the role {role} for " in message
    assert MINE not in message.replace(f"{role}-mine", "")


@pytest.mark.parametrize("name", ["ModelInfer", "ModelMetadata", "ModelConfig", "ModelReady"])
def test_model_role_is_allowed_for_its_model(channel: grpc.Channel, name: str) -> None:
    request = auth.request_naming(auth.METHODS[name], MINE, "")
    code, message = auth.outcome(channel, auth.METHODS[name], request, as_("infer-mine"))
    assert code == ("INVALID_ARGUMENT" if name == "ModelInfer" else "OK"), message


def test_missing_and_forbidden_models_are_denied_alike(channel: grpc.Channel) -> None:
    answers = {
        auth.outcome(
            channel,
            auth.METHODS["ModelInfer"],
            auth.request_naming(auth.METHODS["ModelInfer"], model, ""),
            as_("infer-mine"),
        )[1].replace(model, "")
        for model in (OTHERS, "absent")
    }
    assert len(answers) == 1


def test_unknown_trainer_is_not_found(channel: grpc.Channel) -> None:
    for name in ("GetTrainer", "RestoreCheckpoint", "DeleteTrainer"):
        request = auth.request_naming(auth.METHODS[name], "", "absent")
        status, _ = auth.outcome(channel, auth.METHODS[name], request, as_("train-mine"))
        assert status == "NOT_FOUND"


def test_lists_contain_only_permitted_entries(channel: grpc.Channel) -> None:
    def listed(name: str, identity: str) -> list[str]:
        method = auth.METHODS[name]
        request = auth.request_naming(method, "", "")
        reply = auth.call(channel, method, request, as_(identity))
        entries = getattr(reply, {"ListTrainers": "trainers", "ModelStatistics": "model_stats"}.get(
            name, "models"))
        return sorted(entry.name for entry in entries)

    for name in ("RepositoryIndex", "ModelStatistics"):
        assert listed(name, "infer-mine") == [MINE]
        assert listed(name, "infer") == [MINE, OTHERS]
    assert listed("ListTrainers", "train-mine") == [f"on-{MINE}"]
    assert listed("ListTrainers", "admin-mine") == [f"on-{MINE}"]
    assert listed("ListTrainers", "infer") == []
    assert listed("ListTrainers", "train") == [f"on-{MINE}", f"on-{OTHERS}"]


def test_only_admins_change_settings(server: Server, channel: grpc.Channel) -> None:
    for identity in ("infer", "train", "admin-mine"):
        code, message = auth.outcome(
            channel, auth.METHODS["LogSettings"], set_verbosity(1), as_(identity)
        )
        assert code == "PERMISSION_DENIED"
        assert "the role admin for every model" in message
    auth.call(channel, auth.METHODS["LogSettings"], set_verbosity(0), as_("admin"))
    for outcome in ("PERMISSION_DENIED", "OK"):
        wanted = "1" if outcome == "PERMISSION_DENIED" else "0"
        line = f'trainer="" settings="log_verbose_level={wanted}" outcome={outcome}'
        wait_until(lambda line=line: line in server.log)


def test_model_admin_loads_only_its_model(channel: grpc.Channel) -> None:
    method = auth.METHODS["RepositoryModelLoad"]
    auth.call(channel, method, auth.request_naming(method, MINE, ""), as_("admin-mine"))
    code, _ = auth.outcome(
        channel, method, auth.request_naming(method, OTHERS, ""), as_("admin-mine")
    )
    assert code == "PERMISSION_DENIED"


def test_request_with_two_tokens_is_unauthenticated(channel: grpc.Channel) -> None:
    method = auth.METHODS["ServerMetadata"]
    code, _ = auth.outcome(
        channel, method, auth.request_naming(method, "", ""), [*as_("admin"), *as_("infer")]
    )
    assert code == "UNAUTHENTICATED"


def test_scheme_must_be_bearer(channel: grpc.Channel) -> None:
    method = auth.METHODS["ServerMetadata"]
    request = auth.request_naming(method, "", "")
    for value, expected in (
        (f"bearer {token_of('infer')}", "OK"),
        (f"Basic {token_of('infer')}", "UNAUTHENTICATED"),
        (token_of("infer"), "UNAUTHENTICATED"),
        ("Bearer", "UNAUTHENTICATED"),
        ("Bearer " + "x" * 5000, "UNAUTHENTICATED"),
    ):
        assert auth.outcome(channel, method, request, [("authorization", value)])[0] == expected


def test_health_needs_no_token(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    reply = stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_changes_are_audited(server: Server, channel: grpc.Channel) -> None:
    method = auth.METHODS["DeleteTrainer"]
    hostile = 'x"\nmethod=Rollback'
    auth.outcome(channel, method, auth.request_naming(method, "", hostile), as_("train"))
    auth.outcome(channel, method, auth.request_naming(method, "", "x"), as_("infer"))
    wait_until(lambda: 'trainer="x"' in server.log)
    lines = [line for line in server.log.splitlines() if " audit: " in line]
    assert any(
        'identity="admin"' in line
        and "method=CreateTrainer" in line
        and f'model="{MINE}" trainer="on-{MINE}" outcome=OK' in line
        for line in lines
    )
    assert any(r'trainer="x\"\nmethod=Rollback" outcome=NOT_FOUND' in line for line in lines)
    assert any('identity="infer"' in line and "PERMISSION_DENIED" in line for line in lines)
    assert not any(line.startswith("method=Rollback") for line in server.log.splitlines())
    assert "token-of-" not in server.log


IN_TRAINING = sorted(name for name, need in NEEDS.items() if need == "train")


@pytest.mark.parametrize("name", IN_TRAINING)
def test_training_calls_are_audited_whether_allowed_or_denied(
    server: Server, channel: grpc.Channel, name: str
) -> None:
    of = f"audited-{name}"
    for identity in ("infer", "train"):
        method = auth.METHODS[name]
        code, _ = auth.outcome(
            channel, method, auth.request_naming(method, of, of), as_(identity)
        )
        line = f'identity="{identity}" peer="[^"]+" method={name} .*outcome={code}'
        wait_until(lambda line=line: re.search(line, server.log) is not None)


def test_shared_memory_requires_a_role_for_all_models(channel: grpc.Channel) -> None:
    """Regions are shared by all callers, so a role for one model would expose other inputs."""
    method = auth.METHODS["ModelInfer"]
    request = auth.request_naming(method, MINE, "")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 10])
    request.inputs[0].parameters["shared_memory_region"].string_param = "others"
    codes = {
        identity: auth.outcome(channel, method, request, as_(identity))[0]
        for identity in ("infer-mine", "infer", "admin")
    }
    assert codes == {
        "infer-mine": "UNIMPLEMENTED",
        "infer": "INVALID_ARGUMENT",
        "admin": "INVALID_ARGUMENT",
    }


def test_errors_do_not_reveal_regions_to_unauthorized_callers(channel: grpc.Channel) -> None:
    """Not even that a region larger than the limit for requests in flight exists."""
    size = 5 << 30
    object_ = Path(f"/dev/shm/e2e_access_{secrets.token_hex(8)}")
    with object_.open("wb") as sparse:
        sparse.truncate(size)
    try:
        register = protocol.message("inference.SystemSharedMemoryRegisterRequest")(
            name="large", key=f"/{object_.name}", byte_size=size
        )
        registering = auth.METHODS["SystemSharedMemoryRegister"]
        auth.call(channel, registering, register, as_("admin"))
        method = auth.METHODS["ModelInfer"]
        request = auth.request_naming(method, MINE, "")
        request.inputs.add(name="x", datatype="FP32", shape=[1, 10])
        parameters = request.inputs[0].parameters
        parameters["shared_memory_region"].string_param = "large"
        parameters["shared_memory_byte_size"].int64_param = size
        codes = {
            identity: auth.outcome(channel, method, request, as_(identity))[0]
            for identity in ("infer-mine", "infer")
        }
        assert codes == {"infer-mine": "UNIMPLEMENTED", "infer": "RESOURCE_EXHAUSTED"}
    finally:
        unregistering = auth.METHODS["SystemSharedMemoryUnregister"]
        unregister = protocol.message("inference.SystemSharedMemoryUnregisterRequest")(name="large")
        auth.call(channel, unregistering, unregister, as_("admin"))
        object_.unlink()


def test_denied_calls_are_counted(server: Server, channel: grpc.Channel) -> None:
    method = auth.METHODS["RepositoryModelLoad"]
    request = auth.request_naming(method, MINE, "")

    def counted() -> dict[str, float]:
        metrics = scrape(server.metrics_url)
        return {
            reason: metrics.value("braid_access_denied_total", reason=reason)
            for reason in ("no_credentials", "bad_credentials", "role")
        }

    before = counted()
    auth.outcome(channel, method, request, [])
    for _ in range(2):
        auth.outcome(channel, method, request, auth.bearer("wrong"))
    for _ in range(3):
        auth.outcome(channel, method, request, as_("infer"))
    after = counted()
    assert {reason: after[reason] - before[reason] for reason in after} == {
        "no_credentials": 1,
        "bad_credentials": 2,
        "role": 3,
    }
