"""--model_allowlist: the server loads only files whose hash is in the list."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
import tritonclient.grpc as triton
from e2e.support import auth, configs, exports, models
from e2e.support.polling import wait_until
from e2e.support.server import ROOT, Server, run_to_exit


def sums(repository: Path) -> str:
    """Makes the list as docs/guides/security.md describes."""
    text = (ROOT / "docs/guides/security.md").read_text()
    (command,) = re.findall(r"cd models && (find .*) > \.\./allowlist", text)
    return subprocess.run(
        command, shell=True, cwd=repository, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def repository_of_three(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    for name in ("known", "changed", "two words"):
        auth.export_model(directory / name)
    models.export(directory / "mlp", models.make("mlp"), config=configs.MLP)
    return directory


def states(client: triton.InferenceServerClient) -> dict[str, tuple[str, str]]:
    index = client.get_model_repository_index().models
    return {model.name: (model.state, model.reason) for model in index}


def test_weights_next_to_a_package_must_be_in_the_allowlist(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for name in ("known", "changed"):
        exports.export(models.make("chain"), (torch.zeros(1, 10),), repository / name, "pair")
    (tmp_path / "allowlist").write_text(sums(repository))
    weights = repository / "changed/1/model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + bytes(4))
    flags = (f"--model_allowlist={tmp_path / 'allowlist'}",)
    with Server(repository, "cpu*1", tmp_path / "run", flags) as server:
        with triton.InferenceServerClient(server.address) as client:
            found = states(client)
    assert found["known"][0] == "READY"
    assert "'changed/1/model.safetensors' has the SHA-256 " in found["changed"][1]


def test_only_files_in_the_allowlist_are_loaded(repository_of_three: Path, tmp_path: Path) -> None:
    (tmp_path / "allowlist").write_text(sums(repository_of_three))
    model = repository_of_three / "changed" / "1" / "model.pt"
    good = model.read_bytes()
    model.write_bytes(good + b"\0")
    auth.export_model(repository_of_three / "new")
    config = repository_of_three / "known" / "config.pbtxt"
    flags = (
        f"--model_allowlist={tmp_path / 'allowlist'}",
        "--model_control_mode=explicit",
        "--load_model=*",
    )
    with Server(repository_of_three, "cpu*1", tmp_path / "run", flags) as server:
        with triton.InferenceServerClient(server.address) as client:
            found = states(client)
            assert found["known"][0] == found["mlp"][0] == found["two words"][0] == "READY"
            assert "'changed/1/model.pt' has the SHA-256 " in found["changed"][1]
            assert "'new/1/model.pt' is not in " in found["new"][1]

            # An unlisted configuration counts, too; the loaded version stays.
            config.write_text("max_batch_size: 4\n")
            with pytest.raises(triton.InferenceServerException, match="'known/config.pbtxt' is not"):
                client.load_model("known")
            assert client.is_model_ready("known")

            model.write_bytes(good)
            client.load_model("changed")
            assert client.is_model_ready("changed")

            (tmp_path / "allowlist").write_text(sums(repository_of_three))
            wait_until(lambda: "--model_allowlist: reloaded" in server.log)
            client.load_model("new")
            assert client.is_model_ready("new")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.pt\n", ":1: 'model.pt' is not a hash and a path (expected lines as"),
        (f"{'0' * 64} a\n", ":1: "),
        (f"{'0' * 64}  a\n{'0' * 64} *./a\n", ":2: duplicate path 'a'"),
        (f"\\{'0' * 64}  a\\nb\n", ":1: "),
    ],
)
def test_invalid_allowlist_is_rejected(
    repository_of_three: Path, tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "allowlist").write_text(text)
    done = run_to_exit(
        f"--model_repository={repository_of_three}", f"--model_allowlist={tmp_path / 'allowlist'}"
    )
    assert done.returncode == 2
    assert f"--model_allowlist: {tmp_path / 'allowlist'}{expected}" in done.stderr


def test_missing_allowlist_is_rejected(repository_of_three: Path) -> None:
    done = run_to_exit(
        f"--model_repository={repository_of_three}", "--model_allowlist=/nonexistent"
    )
    assert done.returncode == 2
    assert "--model_allowlist: cannot read /nonexistent: No such file" in done.stderr
