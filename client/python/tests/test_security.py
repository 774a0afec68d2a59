"""Warning about tokens in plaintext."""

from __future__ import annotations

import warnings

import pytest

import braid


@pytest.mark.parametrize(
    "address",
    [
        "braid.example.org:8001",
        "10.0.0.7:8001",
        "dns:///braid.example.org:8001",
        "[2001:db8::1]:8001",
        "ipv4:127.0.0.1:8001,10.0.0.7:8001",
        "localhost.example.org:8001",
    ],
)
def test_token_in_plaintext_to_another_machine_gives_a_warning(address: str) -> None:
    with pytest.warns(UserWarning, match="in plaintext") as caught:
        braid.connect(address, token="secret-word").close()
    assert address in str(caught[0].message)
    assert "secret-word" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("127.0.0.1:8001", {"token": "t"}),
        ("127.8.8.8:8001", {"token": "t"}),
        ("localhost:8001", {"token": "t"}),
        ("[::1]:8001", {"token": "t"}),
        ("ipv6:[::1]:8001", {"token": "t"}),
        ("dns:///localhost:8001", {"token": "t"}),
        ("unix:/run/braid.sock", {"token": "t"}),
        ("braid.example.org:8001", {"token": "t", "tls": True}),
        ("braid.example.org:8001", {}),
    ],
)
def test_protected_or_local_token_gives_no_warning(address: str, options: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        braid.connect(address, **options).close()


def test_warning_is_given_once_per_address() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            braid.connect("once.example.org:8001", token="t").close()
    assert len(caught) == 1
