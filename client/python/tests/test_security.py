"""A token that goes out in plaintext is warned of; others are not."""

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
def test_a_token_in_plaintext_to_another_machine(address: str) -> None:
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
def test_what_nobody_reads_on_the_way(address: str, options: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        braid.connect(address, **options).close()


def test_it_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            braid.connect("once.example.org:8001", token="t").close()
    assert len(caught) == 1
