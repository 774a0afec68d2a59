"""How a client knows the server, and how the server knows the client."""

from __future__ import annotations

import os
import re
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

    def metadata(self) -> list[tuple[str, str]] | None:
        """What goes with each call."""
        return None if self.token is None else [("authorization", f"Bearer {self.token}")]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of a channel; None: plaintext."""
        files = (self.ca, self.key, self.certificate)
        if not self.tls and all(file is None for file in files):
            return None
        return grpc.ssl_channel_credentials(*map(_pem, files))


def _pem(source: PemLike | None) -> bytes | None:
    """Bytes are PEM as they are; anything else is a path."""
    return source if source is None or isinstance(source, bytes) else Path(source).read_bytes()
