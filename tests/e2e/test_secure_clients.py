"""The Python client and the `braid` command with servers that require credentials."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import braid
import numpy as np
import pytest
from e2e.support import auth
from e2e.support.auth import Authority, Pair
from e2e.support.server import COMMAND, Server

MODEL = "mine"
TOKEN = "a-token-of-ann"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.issue("URI:spiffe://example.org/app")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secure")
    auth.export_model(directory / "models" / MODEL)
    (directory / "tokens").write_text(auth.token_line("admin", TOKEN, "ann"))
    (directory / "certificates").write_text("infer spiffe://example.org/app\n")
    (directory / "token").write_text(TOKEN + "\n")
    return directory


@pytest.fixture(scope="module")
def plain(directory: Path) -> Iterator[Server]:
    """A plaintext server on loopback with tokens."""
    flags = (f"--auth_tokens={directory / 'tokens'}",)
    with Server(directory / "models", "cpu*1", directory / "plain", flags) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(directory: Path, authority: Authority) -> Iterator[Server]:
    """A server with mutual TLS, tokens and certificates."""
    pair = authority.issue_server()
    flags = (
        f"--tls_cert={pair.certificate}",
        f"--tls_key={pair.key}",
        f"--tls_client_ca={authority.certificate}",
        f"--auth_tokens={directory / 'tokens'}",
        f"--auth_certificates={directory / 'certificates'}",
    )
    with Server(directory / "models", "cpu*1", directory / "mutual", flags) as server:
        yield server


def use(client: braid.Client, name: str) -> None:
    """Makes every kind of call that an admin may make."""
    assert client.is_ready(MODEL)
    (tensor,) = client.model_metadata(MODEL).inputs
    x = np.ones((4, 10), np.float32)
    (output,) = client.infer(MODEL, {tensor.name: x}).values()
    target = {"target": output}
    trainer = client.create_trainer(MODEL, loss="mse", optimizer="SGD", name=name)
    with trainer.stream() as stream:
        stream.step({tensor.name: x}, target)
    trainer.step({tensor.name: x}, target)
    assert trainer.evaluate([({tensor.name: x}, target)], metrics=["mse"]).rows == 4
    assert trainer.state_dict()
    trainer.delete()


def test_python_client_with_a_token(plain: Server) -> None:
    with braid.connect(plain.address, token=TOKEN) as client:
        use(client, "plain")
        assert TOKEN not in repr(client)


@pytest.mark.parametrize("token", [None, "wrong"])
def test_python_client_with_invalid_token_fails(plain: Server, token: str | None) -> None:
    with braid.connect(plain.address, token=token, wait_ready=10) as client:
        with pytest.raises(braid.Unauthenticated, match="token|credentials"):
            client.models()


def test_python_over_mutual_tls(mutual: Server, authority: Authority, client_pair: Pair) -> None:
    key, certificate = client_pair.pem
    for pem in (
        {
            "ca": authority.certificate,
            "certificate": str(client_pair.certificate),
            "key": client_pair.key,
        },
        {"ca": authority.certificate.read_bytes(), "certificate": certificate, "key": key},
    ):
        with braid.connect(mutual.address, **pem) as client:
            assert [model.name for model in client.models()] == [MODEL]
            with pytest.raises(braid.PermissionDenied, match="the role train for model 'mine'"):
                client.create_trainer(MODEL, loss="mse", optimizer="SGD")
        with braid.connect(mutual.address, token=TOKEN, **pem) as client:
            use(client, "mutual")


def test_python_client_trusts_public_authorities_by_default(mutual: Server) -> None:
    with braid.connect(mutual.address, tls=True, token=TOKEN) as client:
        assert not client.is_ready()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tls": False, "ca": b"pem"}, "ca: requires TLS"),
        ({"certificate": b"pem"}, "expected both or neither"),
        ({"token": ""}, "token: invalid .expected printable ASCII"),
        ({"token": "two words"}, "token: invalid .expected printable ASCII"),
        ({"token": "line\n"}, "token: invalid .expected printable ASCII"),
    ],
)
def test_python_client_rejects_inconsistent_credentials(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        braid.connect("127.0.0.1:1", **arguments)


def run(server: Server, *arguments: str | Path, token: str | None = None) -> tuple[int, str]:
    """Returns the exit code and the output of `braid`. token: for its environment."""
    environment = {name: value for name, value in os.environ.items() if name != "BRAID_TOKEN"}
    if token is not None:
        environment["BRAID_TOKEN"] = token
    done = subprocess.run(
        [str(COMMAND), "--server", server.address, "--timeout=20", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    return done.returncode, done.stdout + done.stderr


def test_command_with_a_token(plain: Server, directory: Path) -> None:
    for code, output in (
        run(plain, "--token_file", directory / "token", "models"),
        run(plain, "models", token=TOKEN),
    ):
        assert code == 0, output
        assert MODEL in output
    for code, output in (run(plain, "models"), run(plain, "models", token="wrong")):
        assert code == 1
        assert "UNAUTHENTICATED" in output
        assert "wrong" not in output


def test_command_over_mutual_tls(
    mutual: Server, directory: Path, authority: Authority, client_pair: Pair
) -> None:
    tls = ("--tls", "--ca", authority.certificate)
    pair = ("--cert", client_pair.certificate, "--key", client_pair.key)
    code, output = run(mutual, *tls, *pair, "models")
    assert code == 0, output
    code, output = run(mutual, *tls, *pair, "rollback", MODEL, "1")
    assert code == 1
    assert "does not have the role train for model 'mine'" in output
    code, output = run(mutual, *tls, *pair, "trainers", token=TOKEN)
    assert code == 0, output
    assert run(mutual, *tls, "models", token=TOKEN)[0] == 1
    assert run(mutual, "models", token=TOKEN)[0] == 1


def test_command_reports_missing_credentials(plain: Server, directory: Path) -> None:
    (directory / "empty").write_text("\n")
    for arguments, expected in (
        (("--cert", directory / "token"), "--cert: given without key (expected both)"),
        (
            ("--cert", directory / "token", "--key", directory / "token"),
            "--cert: given without TLS (expected --tls too)",
        ),
        (("--token_file", "/nonexistent"), "--token_file: cannot read '/nonexistent'"),
        (("--token_file", directory / "empty"), "--token_file: holds no token"),
        (("--tls", "--ca", "/nonexistent"), "--ca: cannot read '/nonexistent'"),
    ):
        code, output = run(plain, *arguments, "models")
        assert code == 2, output
        assert expected in output
        assert TOKEN not in output
