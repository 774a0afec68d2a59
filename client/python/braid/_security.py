"""How a client knows the server, and how the server knows the client."""

from __future__ import annotations

import ipaddress
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import grpc

_WORD = re.compile("[!-~]+")
PemLike = bytes | str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class Security:
    """What `braid.connect` was given of it, as it documents. Says nothing of itself: it is secret.

    ValueError for what does not go together, OSError for a file that cannot be read.
    """

    token: str | None = None
    tls: bool | None = None
    ca: PemLike | None = None
    certificate: PemLike | None = None
    key: PemLike | None = None

    def __post_init__(self) -> None:
        files = [name for name in ("ca", "certificate", "key") if getattr(self, name) is not None]
        if files and self.tls is False:
            raise ValueError(f"{files[0]}: is for TLS; expected tls=True, or no {files[0]}")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate, key: expected both, or neither")
        if self.token is not None and not _WORD.fullmatch(self.token):
            raise ValueError("token: expected one word of printable ASCII characters")

    @property
    def encrypts(self) -> bool:
        return bool(self.tls) or any(
            file is not None for file in (self.ca, self.certificate, self.key)
        )

    def warn_of_exposure(self, address: str) -> None:
        """Warns, once for each address, of a token that everybody on the way could read."""
        if self.token is not None and not self.encrypts and not _is_here(address):
            warnings.warn(
                f"the token goes to {address} in plaintext, for everybody on the way to read; "
                "expected tls=True or ca=…, unless something on this machine has TLS",
                stacklevel=2,
            )

    def metadata(self) -> list[tuple[str, str]] | None:
        """What goes with each call."""
        return None if self.token is None else [("authorization", f"Bearer {self.token}")]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of a channel; None: plaintext."""
        if not self.encrypts:
            return None
        return grpc.ssl_channel_credentials(*map(_pem, (self.ca, self.key, self.certificate)))


def _is_here(address: str) -> bool:
    """Whether the way to a gRPC target does not leave this machine."""
    scheme, colon, rest = address.partition(":")
    if colon and scheme in ("unix", "unix-abstract"):
        return True
    if colon and scheme in ("dns", "ipv4", "ipv6", "passthrough"):
        address = rest.rpartition("/")[2]
    return all(_is_loopback(each) for each in address.split(","))


def _is_loopback(address: str) -> bool:
    bracketed = re.fullmatch(r"\[(.*)\](?::\d+)?", address)
    host = bracketed[1] if bracketed else re.sub(r":\d+$", "", address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _pem(source: PemLike | None) -> bytes | None:
    """Bytes are PEM as they are; anything else is a path."""
    return source if source is None or isinstance(source, bytes) else Path(source).read_bytes()
