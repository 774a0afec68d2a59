"""Versions that users manage: list, pins, labels, deletion, and numbers that the server assigns."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
from braid._protocol import MODELS
from e2e.support import auth, model_control
from e2e.support.durable import DurableServer
from e2e.support.server import COMMAND, Server

X = np.ones((1, 4), np.float32)
# The model multiplies by the number of the version.
MODEL = "scale"


def export(repository: Path, version: int) -> None:
    model_control.write(repository, MODEL, version, factor=version)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DurableServer]:
    """Has versions 1 and 2, and serves 2."""
    for version in (1, 2):
        export(tmp_path / "models", version)
    server = DurableServer(tmp_path / "models", "cpu*2", tmp_path / "run")
    try:
        server.start()
        yield server
        assert server.process.poll() is None, server.log
    finally:
        server.kill()


def answer(client: braid.Client, version: int | str | None = None) -> float:
    return float(client.infer(MODEL, {"x": X}, version=version)["y"][0, 0])


def versions(client: braid.Client) -> dict[int, braid.ModelVersion]:
    return {each.version: each for each in client.list_versions(MODEL) if each.state != "ignored"}


def publish(client: braid.Client) -> int:
    trainer = client.create_trainer(MODEL, name="t", loss="mse", optimizer="SGD")
    trainer.step({"x": X}, {"target": X})
    return trainer.publish(wait_durable=True)


def test_pin_survives_a_restart_and_unpin_serves_a_later_export(
    server: DurableServer, client: braid.Client
) -> None:
    assert client.rollback(MODEL, 1) == 2
    export(server.repository, 3)
    server.start_again(signal.SIGTERM)
    assert answer(client) == 1
    listed = versions(client)
    assert [(each.state, each.serving, each.pinned) for each in listed.values()] == [
        ("ready", True, True), ("idle", False, False), ("idle", False, False),
    ]  # fmt: skip
    export(server.repository, 4)
    assert client.unpin(MODEL) == 4
    assert answer(client) == 4
    assert not any(each.pinned for each in versions(client).values())
    server.start_again()
    assert answer(client) == 4


def test_publish_ends_a_pin(server: DurableServer, client: braid.Client) -> None:
    client.pin(MODEL, 2)
    assert publish(client) == 3
    third = versions(client)[3]
    assert third.serving and not third.pinned
    assert (third.origin, third.trainer, third.step) == ("published", "t", 1)
    assert "publishing version 3 ends the pin of version 2" in server.log


def test_publish_to_another_model(server: DurableServer, client: braid.Client) -> None:
    model_control.write(server.repository, "other", 1, factor=5)
    server.start_again()
    trainer = client.create_trainer(MODEL, name="t", loss="mse", optimizer="SGD")
    assert trainer.publish("other") == 2
    assert float(client.infer("other", {"x": X})["y"][0, 0]) == answer(client) == 2
    assert client.list_versions("other")[1].trainer == "t"
    assert set(versions(client)) == {1, 2}
    with pytest.raises(braid.NotFound, match="unknown model 'none'"):
        trainer.publish("none")


def test_requests_by_label(server: DurableServer, client: braid.Client) -> None:
    """Also after a restart, and after other versions were published."""
    assert client.set_label(MODEL, "stable", 1) is None
    assert [answer(client), answer(client, "stable")] == [2, 1]
    assert client.is_ready(MODEL, version="stable")
    assert client.model_metadata(MODEL, version="stable").versions == (1,)
    assert publish(client) == 3
    server.start_again()
    assert answer(client, "stable") == 1
    assert versions(client)[1].labels == ("stable",)
    with pytest.raises(braid.NotFound, match="no label 'canary' .labels: stable"):
        answer(client, "canary")
    with pytest.raises(braid.InvalidArgument, match="'1.5' is not a version") as caught:
        answer(client, "1.5")
    assert caught.value.field == "model_version"
    # A label can move ahead of the version that other requests get.
    client.pin(MODEL, 2)
    assert client.set_label(MODEL, "canary", 3) is None
    assert answer(client) == 2 != answer(client, "canary")
    assert client.set_label(MODEL, "stable", None) == 1
    with pytest.raises(braid.NotFound):
        answer(client, "stable")
    assert versions(client)[1].state == "idle"


def test_delete_version(server: DurableServer, client: braid.Client) -> None:
    assert publish(client) == 3
    with pytest.raises(braid.FailedPrecondition, match="being served"):
        client.delete_version(MODEL, 3)
    client.pin(MODEL, 2)
    client.set_label(MODEL, "best", 3)
    with pytest.raises(braid.FailedPrecondition, match="label 'best'"):
        client.delete_version(MODEL, 3)
    client.set_label(MODEL, "best", None)
    client.delete_version(MODEL, 3)
    assert set(versions(client)) == {1, 2}
    assert not (server.data / "models" / MODEL / "3").exists()
    with pytest.raises(braid.FailedPrecondition, match="in the model repository"):
        client.delete_version(MODEL, 1)
    server.start_again()
    assert client.reserve_version(MODEL) == 4


def test_list_shows_a_folder_that_is_ignored(server: DurableServer, client: braid.Client) -> None:
    assert publish(client) == 3
    export(server.repository, 3)
    server.start_again()
    ignored = [each for each in client.list_versions(MODEL) if each.state == "ignored"]
    assert [(each.version, each.origin) for each in ignored] == [(3, "exported")]
    assert "trainer 't'" in ignored[0].reason and "rename it to 4" in ignored[0].reason
    folder = server.repository / MODEL
    (folder / "3").rename(folder / str(client.reserve_version(MODEL)))
    server.start_again()
    assert versions(client)[4].serving


def test_list_gives_the_reason_of_a_failure(server: DurableServer, client: braid.Client) -> None:
    (server.repository / MODEL / "3").mkdir()
    (server.repository / MODEL / "3" / "model.pt").write_text("not a model")
    server.start_again()
    failed = versions(client)[3]
    assert failed.state == "unavailable" and "model.pt" in failed.reason


def test_restart_with_a_damaged_version_serves_an_older_one(
    server: DurableServer, client: braid.Client
) -> None:
    client.pin(MODEL, 1)
    client.set_label(MODEL, "canary", 2)
    for number in (3, 4):
        (server.repository / MODEL / str(number)).mkdir()
        (server.repository / MODEL / str(number) / "model.pt").write_text("not a model")
    server.start_again()
    assert [answer(client), answer(client, "canary")] == [1, 2]
    assert [versions(client)[each].state for each in (3, 4)] == ["unavailable", "unavailable"]
    with pytest.raises(braid.FailedPrecondition, match="model.pt"):
        client.unpin(MODEL)  # The newest version does not load, so the pin stays.
    assert answer(client) == 1


def test_restart_without_a_version_folder_that_loads_serves_stored_versions(
    server: DurableServer, client: braid.Client
) -> None:
    trainer = client.create_trainer(MODEL, name="t", loss="mse", optimizer="SGD", checkpoint_every=1)
    expected = {}
    for _ in range(2):
        trainer.step({"x": X}, {"target": X})
        version = trainer.publish(wait_durable=True)
        expected[version] = answer(client)
    assert len(set(expected.values())) == 2
    # Without it, a publication after the kill could be taken for a retry of the last one.
    trainer.save_checkpoint()
    client.set_label(MODEL, "stable", 3)
    shutil.rmtree(server.repository / MODEL / "1")
    (server.repository / MODEL / "2" / "model.pt").write_text("not a model")
    server.start_again()
    assert [answer(client), answer(client, "stable")] == [expected[4], expected[3]]
    assert versions(client)[2].state == "unavailable"
    shutil.rmtree(server.repository / MODEL / "2")
    client.pin(MODEL, 3)
    server.start_again()
    assert answer(client) == expected[3]
    assert client.trainer("t").publish() == 5


def test_unpin_serves_what_the_policy_selects(
    server: DurableServer, client: braid.Client
) -> None:
    config = model_control.CONFIG.format(rows=8)
    config += "version_policy { specific { versions: [1] } }"
    (server.repository / MODEL / "config.pbtxt").write_text(config)
    server.start_again()
    assert answer(client) == 1
    client.pin(MODEL, 2)
    assert answer(client) == 2
    assert client.unpin(MODEL) == 1
    assert answer(client) == 1


def test_upload(server: DurableServer, client: braid.Client, tmp_path: Path) -> None:
    made = tmp_path / "made"
    model_control.write(made, MODEL, 7, factor=7)
    upload = made / MODEL / "7"
    with pytest.raises(braid.FailedPrecondition, match="--allow_model_upload"):
        client.upload_version(MODEL, upload)
    assert set(versions(client)) == {1, 2}
    server.replace_flag("--allow_model_upload", "true")
    server.replace_flag("--max_upload_bytes", str(1 << 20))
    server.start_again(signal.SIGTERM)
    assert client.upload_version(MODEL, upload) == 3
    assert answer(client) == 7
    assert versions(client)[3].origin == "uploaded"
    # A pin holds, also after a restart.
    client.pin(MODEL, 2)
    assert client.upload_version(MODEL, upload) == 4
    assert [answer(client), versions(client)[4].state] == [2, "idle"]
    server.start_again()
    assert answer(client) == 2
    assert client.unpin(MODEL) == 4
    # A folder that is not loaded yet keeps its number.
    export(server.repository, 5)
    assert client.upload_version(MODEL, upload) == 6
    # An upload that ends early or cannot be loaded adds no version.
    method = MODELS["UploadVersion"]

    def feed(*requests: dict) -> None:
        messages = [method.request(**request).SerializeToString() for request in requests]
        client._channel.call_feeding(method, messages)

    first = {"model": MODEL, "file": "model.pt", "data": b"PK"}
    with pytest.raises(braid.InvalidArgument, match="complete: not set"):
        feed(first)
    with pytest.raises(braid.InvalidArgument, match="model: 'other' in a later .* 'scale'"):
        feed(first, {**first, "model": "other", "complete": True})
    with pytest.raises(braid.InvalidArgument, match="file: 'model.safetensors' with 'model.pt'"):
        feed(first, {"file": "model.safetensors", "data": b"", "complete": True})
    with pytest.raises(braid.ResourceExhausted, match="--max_upload_bytes"):
        feed(first, {**first, "data": bytes(1 << 20), "complete": True})
    (upload / "model.pt").write_text("not a model")
    with pytest.raises(braid.BraidError, match="model.pt"):
        client.upload_version(MODEL, upload)
    with pytest.raises(braid.NotFound, match="other"):
        client.upload_version("other", upload)
    assert set(versions(client)) == {1, 2, 3, 4, 5, 6}
    assert list((server.data / "uploads").iterdir()) == []
    assert publish(client) == 8


def test_command(server: DurableServer, client: braid.Client) -> None:
    def braid_models(*arguments: str) -> str:
        command = [str(COMMAND), "--server", server.address, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "braid models unpin scale" in braid_models("rollback", MODEL, "1")
    braid_models("models", "label", MODEL, "stable", "2")
    assert "pinned" in braid_models("models")
    shown = json.loads(braid_models("models", "show", MODEL, "--json"))["all_versions"]
    assert [(each["version"], each["pinned"], each["labels"]) for each in shown] == [
        (1, True, []), (2, False, ["stable"]),
    ]  # fmt: skip


def test_changes_need_the_role_admin(tmp_path: Path) -> None:
    export(tmp_path / "models", 1)
    lines = [auth.token_line(role, f"token-{role}", role) for role in ("infer", "train", "admin")]
    (tmp_path / "tokens").write_text("".join(lines))
    flags = (f"--auth_tokens={tmp_path / 'tokens'}",)
    with Server(tmp_path / "models", "cpu*1", tmp_path / "run", flags) as server:
        with braid.connect(server.address, token="token-train") as client:
            assert versions(client)[1].serving
            with pytest.raises(braid.PermissionDenied, match="SetLabel.*role admin"):
                client.set_label(MODEL, "stable", 1)
        with braid.connect(server.address, token="token-admin") as client:
            client.set_label(MODEL, "stable", 1)
            assert "method=SetLabel" in server.log and 'label="stable"' in server.log
