"""Token files: validation, reload on changes, and flags that open the server to the network."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import pytest
from e2e.support import auth, protocol
from e2e.support.polling import wait_until
from e2e.support.server import Server, run_to_exit

MINE = "mine"


def test_token_file_changes_apply_while_serving(tmp_path: Path) -> None:
    auth.export_model(tmp_path / "models" / MINE)
    tokens = tmp_path / "tokens"
    tokens.write_text(auth.token_line("infer", "first", "ann"))
    method = auth.METHODS["RepositoryIndex"]
    request = auth.request_naming(method, "", "")
    with Server(
        tmp_path / "models", "cpu*1", tmp_path / "run", (f"--auth_tokens={tokens}",)
    ) as server, protocol.channel(server.address) as on:

        def code(token: str) -> str:
            return auth.outcome(on, method, request, auth.bearer(token))[0]

        infer = auth.METHODS["ModelStreamInfer"]
        messages: list = []
        stream = on.stream_stream(
            f"/{infer.containing_service.full_name}/{infer.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=protocol.message(infer.output_type.full_name).FromString,
        )
        requests: queue.SimpleQueue = queue.SimpleQueue()
        replies = stream(iter(requests.get, None), metadata=auth.bearer("first"), timeout=60)
        requests.put(auth.request_naming(infer, MINE, ""))
        messages.append(next(replies).error_message)
        assert code("first") == "OK"
        tokens.write_text(auth.token_line("infer", "second", "ann"))
        wait_until(lambda: code("second") == "OK")
        assert code("first") == "UNAUTHENTICATED"
        requests.put(auth.request_naming(infer, MINE, ""))
        messages.append(next(replies).error_message)
        requests.put(None)
        assert "inputs" in messages[0]
        assert "token" in messages[1]

        tokens.write_text("boss sha256:00 ann\n")
        wait_until(lambda: "reload failed" in server.log)
        assert f"{tokens}:1: 'boss' is not a role (expected infer, train or admin" in server.log
        assert code("second") == "OK"
        tokens.unlink()
        wait_until(lambda: f"cannot read {tokens}" in server.log)
        assert code("second") == "OK"
        tokens.write_text("# nobody\n")
        wait_until(lambda: code("second") == "UNAUTHENTICATED")
        assert f"--auth_tokens: '{tokens}' contains no identities" in server.log


HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("infer\n", ":1: has fewer than three words (expected ROLE"),
        (f"boss sha256:{HASH} ann\n", ":1: 'boss' is not a role (expected infer, train or admin"),
        (f"infer: sha256:{HASH} ann\n", ":1: 'infer:' is not a role"),
        (f"infer,,train sha256:{HASH} ann\n", ":1: '' is not a role"),
        (f"infer {HASH} ann\n", ":1: the second word, of 64 bytes, is not the hash"),
        (f"infer sha256:{HASH[1:]} ann\n", ":1: the second word, of 70 bytes, is not the hash"),
        (f"infer sha256:{HASH[1:]}g ann\n", "expected sha256: and 64 hexadecimal digits"),
        (f"# one\n\ninfer sha256:{HASH} ann b\n", ":3: has more than three words"),
        (f"infer sha256:{HASH} ann\ntrain sha256:{HASH} bob\n", ":2: duplicate token: 'bob'"),
        (f"infer sha256:{HASH} ann\ninfer sha256:{HASH[1:]}1 ann\n", ":2: duplicate name 'ann'"),
    ],
)
def test_invalid_file_is_rejected(repository: Path, tmp_path: Path, text: str, expected: str) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(text)
    done = run_to_exit(f"--model_repository={repository}", f"--auth_tokens={tokens}")
    assert done.returncode == 2
    assert f"--auth_tokens: {tokens}" in done.stderr
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--auth_tokens=/nonexistent"], "--auth_tokens: cannot read /nonexistent: No such file"),
        (["--auth_certificates=/nonexistent"], "--auth_certificates: requires --tls_client_ca"),
        (["--tls_client_ca=/nonexistent"], "--tls_client_ca: requires --tls_cert and --tls_key"),
        (["--tls_cert=/nonexistent"], "--tls_cert: requires both --tls_cert and --tls_key"),
        (["--tls_key=/nonexistent"], "--tls_key: requires both --tls_cert and --tls_key"),
        (["--listen=0.0.0.0"], "--allow_unauthenticated"),
        (["--listen=[::]"], "--allow_unauthenticated"),
        (["--listen=0.0.0.0", "--auth_tokens=/dev/null"], "--tls_terminated_in_front"),
    ],
)
def test_insecure_flags_are_rejected(
    repository: Path, flags: list[str], expected: str
) -> None:
    done = run_to_exit(f"--model_repository={repository}", *flags)
    assert done.returncode == 2
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9"])
def test_loopback_needs_no_credentials(tmp_path: Path, host: str) -> None:
    auth.export_model(tmp_path / "models" / MINE)
    with Server(
        tmp_path / "models", "cpu*1", tmp_path / "run", (f"--listen={host}",)
    ) as server:
        assert json.loads(server.ready_path.read_text())


@pytest.mark.parametrize(
    "flags",
    [["--allow_unauthenticated"], ["--auth_tokens={tokens}", "--tls_terminated_in_front"]],
)
def test_explicit_flags_allow_all_interfaces(tmp_path: Path, flags: list[str]) -> None:
    auth.export_model(tmp_path / "models" / MINE)
    (tmp_path / "tokens").write_text(auth.token_line("infer", "token", "ann"))
    flags = [flag.format(tokens=tmp_path / "tokens") for flag in flags]
    with Server(
        tmp_path / "models", "cpu*1", tmp_path / "run", ("--listen=0.0.0.0", *flags)
    ) as server, protocol.channel(server.address) as on:
        method = auth.METHODS["RepositoryIndex"]
        request = auth.request_naming(method, "", "")
        auth.call(on, method, request, auth.bearer("token"))
