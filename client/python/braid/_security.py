"""TLS and authentication settings of a client."""

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
    """Security arguments of `braid.connect`. Has no repr, because it contains secrets.

    Raises ValueError for invalid combinations, OSError for a file that cannot be read.
    """

    token: str | None = None
    tls: bool | None = None
    ca: PemLike | None = None
    certificate: PemLike | None = None
    key: PemLike | None = None

    def __post_init__(self) -> None:
        files = [name for name in ("ca", "certificate", "key") if getattr(self, name) is not None]
        if files and self.tls is False:
            raise ValueError(f"{files[0]}: requires TLS (expected tls=True, or no {files[0]})")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate, key: only one is given (expected both or neither)")
        if self.token is not None and not _WORD.fullmatch(self.token):
            raise ValueError("token: invalid (expected printable ASCII characters without spaces)")

    @property
    def encrypts(self) -> bool:
        return bool(self.tls) or any(
            file is not None for file in (self.ca, self.certificate, self.key)
        )

    def warn_of_exposure(self, address: str) -> None:
        """Warns, once per address, about a token in plaintext on the network."""
        if self.token is not None and not self.encrypts and not _is_here(address):
            warnings.warn(
                f"token: sent to {address} in plaintext, readable on the network (expected "
                "tls=True or ca=…, unless a local proxy adds TLS)",
                stacklevel=2,
            )

    def metadata(self) -> list[tuple[str, str]] | None:
        """Returns the gRPC metadata of each call, or None."""
        return None if self.token is None else [("authorization", f"Bearer {self.token}")]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of the channel, or None for plaintext."""
        if not self.encrypts:
            return None
        return grpc.ssl_channel_credentials(*map(_pem, (self.ca, self.key, self.certificate)))


def _is_here(address: str) -> bool:
    """Returns True if a gRPC target is on this machine."""
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
    """Returns PEM bytes, read from a file unless `source` is bytes."""
    return source if source is None or isinstance(source, bytes) else Path(source).read_bytes()
