"""TLS: authentication of clients and servers, invalid files, and reloading of certificates."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from e2e.support import auth
from e2e.support.auth import Authority, Pair, openssl
from e2e.support.inference import infer
from e2e.support.polling import wait_until
from e2e.support.server import Server, run_to_exit

MODEL = "mine"
LIST = auth.METHODS["RepositoryIndex"]


def list_models(on: grpc.Channel, token: str | None = None) -> tuple[str, str]:
    return auth.outcome(on, LIST, auth.request_naming(LIST, "", ""), auth.bearer(token))


def secure(server: Server, ca: Path, client: Pair | None = None) -> grpc.Channel:
    key, certificate = client.pem if client else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)
    return grpc.secure_channel(server.address, credentials)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An untrusted authority with the same name."""
    return Authority(tmp_path_factory.mktemp("stranger") / "ca")


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    return authority.issue_server()


@pytest.fixture(scope="module")
def repository_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    auth.export_model(directory / MODEL)
    return directory


@pytest.fixture(scope="module")
def tls_server(
    repository_of_one: Path, server_pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with TLS and tokens."""
    directory = tmp_path_factory.mktemp("tls")
    (directory / "tokens").write_text(auth.token_line("infer", "secret", "ann"))
    flags = (
        f"--tls_cert={server_pair.certificate}",
        f"--tls_key={server_pair.key}",
        f"--auth_tokens={directory / 'tokens'}",
    )
    with Server(repository_of_one, "cpu*1", directory / "run", flags) as server:
        yield server


@pytest.fixture(scope="module")
def mutual_server(
    repository_of_one: Path,
    server_pair: Pair,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """A server with mutual TLS, tokens and identities for certificates."""
    directory = tmp_path_factory.mktemp("mutual")
    (directory / "tokens").write_text(auth.token_line("infer", "secret", "ann"))
    (directory / "certificates").write_text(
        "# by subject alternative name\n"
        "infer:mine spiffe://example.org/app\n"
        "train build.example.org\n"
        "admin Jane Roe\n"
        "train ann@example.org\n"
        "train 10.0.0.7\n"
    )
    flags = (
        f"--tls_cert={server_pair.certificate}",
        f"--tls_key={server_pair.key}",
        f"--tls_client_ca={authority.certificate}",
        f"--auth_tokens={directory / 'tokens'}",
        f"--auth_certificates={directory / 'certificates'}",
    )
    with Server(repository_of_one, "cpu*1", directory / "run", flags) as server:
        yield server


def test_token_over_tls(tls_server: Server, authority: Authority) -> None:
    with secure(tls_server, authority.certificate) as on:
        assert list_models(on, "secret")[0] == "OK"
        assert list_models(on, "wrong")[0] == "UNAUTHENTICATED"
        assert list_models(on)[0] == "UNAUTHENTICATED"


def test_plaintext_is_rejected(tls_server: Server) -> None:
    with grpc.insecure_channel(tls_server.address) as on:
        assert list_models(on, "secret")[0] == "UNAVAILABLE"


def test_clients_detect_an_impostor_server(tls_server: Server, stranger: Authority) -> None:
    with secure(tls_server, stranger.certificate) as on:
        assert list_models(on, "secret")[0] == "UNAVAILABLE"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_versions_are_rejected(
    tls_server: Server, authority: Authority, version: ssl.TLSVersion
) -> None:
    assert handshake(tls_server, authority, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    # The server closes the connection before or after its alert.
    with pytest.raises((ssl.SSLError, ConnectionError), match="PROTOCOL_VERSION|EOF|reset"):
        handshake(tls_server, authority, version)


def handshake(server: Server, authority: Authority, version: ssl.TLSVersion) -> str:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.set_alpn_protocols(["h2"])
    # Otherwise the client's own policy would reject the version.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            return wrapped.version()


def test_tritonclient_over_tls(tls_server: Server, authority: Authority) -> None:
    with triton.InferenceServerClient(
        tls_server.address, ssl=True, root_certificates=str(authority.certificate)
    ) as client:
        inputs = {"INPUT__0": np.ones((2, 10), np.float32)}
        metadata = client.get_model_metadata(MODEL, headers=dict(auth.bearer("secret")))
        inputs = {metadata.inputs[0].name: inputs["INPUT__0"]}
        result = infer(client, MODEL, inputs, headers=dict(auth.bearer("secret")))
        assert result.as_numpy(metadata.outputs[0].name).shape == (2, 5)
        with pytest.raises(triton.InferenceServerException, match="no credentials"):
            infer(client, MODEL, inputs)


@pytest.mark.parametrize(
    ("names", "common_name", "sees", "trains"),
    [
        (("URI:spiffe://example.org/app",), "", True, False),
        (("DNS:build.example.org",), "", True, True),
        (("DNS:other.example.org", "DNS:build.example.org"), "", True, True),
        (("email:ann@example.org",), "", True, True),
        (("IP:10.0.0.7",), "", True, True),
        ((), "Jane Roe", True, True),
    ],
)
def test_certificate_maps_to_its_identity(
    mutual_server: Server,
    authority: Authority,
    names: tuple[str, ...],
    common_name: str,
    sees: bool,
    trains: bool,
) -> None:
    pair = authority.issue(*names, common_name=common_name)
    rollback = auth.METHODS["Rollback"]
    with secure(mutual_server, authority.certificate, pair) as on:
        assert (list_models(on)[0] == "OK") == sees
        code, _ = auth.outcome(on, rollback, auth.request_naming(rollback, MODEL, ""), [])
        assert (code != "PERMISSION_DENIED") == trains


@pytest.mark.parametrize(
    ("names", "common_name"),
    [
        (("DNS:unknown.example.org",), ""),
        # The common name counts only without alternative names.
        (("DNS:unknown.example.org",), "Jane Roe"),
        (("IP:10.0.0.8",), "Jane Roe"),
        # Compared literally, not as a pattern.
        (("DNS:*.example.org",), ""),
        ((), "Jane Roe 2"),
        ((), ""),
    ],
)
def test_certificates_without_identity_are_rejected(
    mutual_server: Server, authority: Authority, names: tuple[str, ...], common_name: str
) -> None:
    pair = authority.issue(*names, common_name=common_name)
    with secure(mutual_server, authority.certificate, pair) as on:
        assert list_models(on)[0] == "UNAUTHENTICATED"


def test_token_takes_precedence_over_the_certificate(
    mutual_server: Server, authority: Authority
) -> None:
    rollback = auth.METHODS["Rollback"]
    request = auth.request_naming(rollback, MODEL, "")
    with secure(mutual_server, authority.certificate, authority.issue(common_name="Jane Roe")) as on:
        assert list_models(on, "wrong")[0] == "UNAUTHENTICATED"
        code, _ = auth.outcome(on, rollback, request, auth.bearer("secret"))
        assert code == "PERMISSION_DENIED"


def test_client_certificate_is_required(mutual_server: Server, authority: Authority) -> None:
    with secure(mutual_server, authority.certificate) as on:
        assert list_models(on, "secret")[0] == "UNAVAILABLE"


def self_signed(directory: Path) -> Pair:
    pair = Pair(directory / "self.pem", directory / "self-key.pem")
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", "/CN=Jane Roe", "-keyout", pair.key, "-out", pair.certificate),
    )
    return pair


@pytest.mark.parametrize("kind", ["stranger", "self-signed", "expired"])
def test_invalid_client_certificates_are_rejected(
    mutual_server: Server, authority: Authority, stranger: Authority, tmp_path: Path, kind: str
) -> None:
    pair = {
        "stranger": lambda: stranger.issue(common_name="Jane Roe"),
        "self-signed": lambda: self_signed(tmp_path),
        "expired": lambda: authority.issue(common_name="Jane Roe", days=-1),
    }[kind]()
    with secure(mutual_server, authority.certificate, pair) as on:
        assert list_models(on, "secret")[0] == "UNAVAILABLE"


def mutated(pem: bytes) -> bytes:
    """Changes one base64 character in the middle."""
    at = len(pem) // 2
    while pem[at : at + 1] in b"\nA":
        at += 1
    return pem[:at] + b"A" + pem[at + 1 :]


def test_invalid_tls_files_are_rejected(
    repository_of_one: Path, authority: Authority, server_pair: Pair, tmp_path: Path
) -> None:
    def write(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    good, other = server_pair, authority.issue_server()
    locked = tmp_path / "locked"
    openssl("ec", "-in", good.key, "-aes256", "-passout", "pass:word", "-out", locked)
    ca = authority.certificate
    certificate, key = good.certificate, good.key
    for flags, expected in (
        ((tmp_path / "none", key, None), f"cannot read {tmp_path / 'none'}: No such file"),
        ((certificate, tmp_path / "none", None), f"cannot read {tmp_path / 'none'}"),
        ((tmp_path, key, None), f"cannot read {tmp_path}: Is a directory"),
        ((certificate, other.key, None), "--tls_key: does not match the first certificate"),
        ((key, key, None), "--tls_cert: contains no certificate (expected PEM"),
        ((certificate, certificate, None), "--tls_key: contains no readable key"),
        ((certificate, locked, None), "--tls_key: contains no readable key (expected PEM"),
        ((write("empty", b""), key, None), "--tls_cert: contains no certificate"),
        (
            (write("half", certificate.read_bytes()[:-40]), key, None),
            "--tls_cert: contains no certificate",
        ),
        (
            (write("chain", certificate.read_bytes() + mutated(ca.read_bytes())[:-40]), key, None),
            "--tls_cert: contains a malformed certificate",
        ),
        ((certificate, write("key", mutated(key.read_bytes())), None), "--tls_key: "),
        ((certificate, key, key), "--tls_client_ca: contains no certificate"),
        ((certificate, key, write("no-ca", b"")), "--tls_client_ca: is empty"),
        (
            (*(lambda p: (p.certificate, p.key))(authority.issue_server(days=-1)), None),
            "--tls_cert: a certificate expired at 20",
        ),
    ):
        names = ("tls_cert", "tls_key", "tls_client_ca")
        done = run_to_exit(
            f"--model_repository={repository_of_one}",
            "--devices=cpu*1",
            "--grpc_port=0",
            "--metrics_port=0",
            *(f"--{name}={path}" for name, path in zip(names, flags) if path is not None),
        )
        assert done.returncode == 2, (expected, done)
        assert expected in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def served_certificate(server: Server, ca: Path) -> bytes:
    """Returns the certificate that a new connection receives."""
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as plain:
        with context.wrap_socket(plain) as wrapped:
            return wrapped.getpeercert(binary_form=True)


def test_certificates_are_reloaded_while_serving(
    repository_of_one: Path, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    first, second = authority.issue_server(), stranger.issue_server()
    live = Pair(tmp_path / "cert.pem", tmp_path / "key.pem")
    shutil.copy(first.certificate, live.certificate)
    shutil.copy(first.key, live.key)
    flags = (f"--tls_cert={live.certificate}", f"--tls_key={live.key}")
    with Server(repository_of_one, "cpu*1", tmp_path / "run", flags) as server:
        ca = authority.certificate
        with secure(server, ca) as before:
            assert list_models(before)[0] == "OK"
            shown = served_certificate(server, ca)

            # Half of a pair, as during copying, is not loaded.
            shutil.copy(second.certificate, live.certificate)
            wait_until(lambda: "does not match the first certificate" in server.log)
            assert served_certificate(server, ca) == shown
            with secure(server, ca) as meanwhile:
                assert list_models(meanwhile)[0] == "OK"

            shutil.copy(second.key, live.key)
            wait_until(lambda: served_certificate(server, ca) != shown)
            with secure(server, stranger.certificate) as after:
                assert list_models(after)[0] == "OK"
            with secure(server, ca) as after:
                assert list_models(after)[0] == "UNAVAILABLE"
            # Open connections stay open.
            assert list_models(before)[0] == "OK"

        shown = served_certificate(server, ca)
        live.certificate.unlink()
        wait_until(lambda: f"cannot read {live.certificate}" in server.log)
        assert served_certificate(server, ca) == shown
        expired = authority.issue_server(days=-1)
        shutil.copy(expired.key, live.key)
        shutil.copy(expired.certificate, live.certificate)
        wait_until(lambda: "expired at" in server.log)
        assert served_certificate(server, ca) == shown


def test_client_authorities_are_reloaded_while_serving(
    repository_of_one: Path,
    authority: Authority,
    stranger: Authority,
    server_pair: Pair,
    tmp_path: Path,
) -> None:
    client = stranger.issue(common_name="Jane Roe")
    believed = tmp_path / "clients.pem"
    shutil.copy(authority.certificate, believed)
    (tmp_path / "certificates").write_text("admin Jane Roe\n")
    flags = (
        f"--tls_cert={server_pair.certificate}",
        f"--tls_key={server_pair.key}",
        f"--tls_client_ca={believed}",
        f"--auth_certificates={tmp_path / 'certificates'}",
    )
    with Server(repository_of_one, "cpu*1", tmp_path / "run", flags) as server:

        def code() -> str:
            with secure(server, authority.certificate, client) as on:
                return list_models(on)[0]

        assert code() == "UNAVAILABLE"
        shutil.copy(stranger.certificate, believed)
        wait_until(lambda: code() == "OK")
        (tmp_path / "certificates").write_text("admin John Roe\n")
        wait_until(lambda: code() == "UNAUTHENTICATED")
