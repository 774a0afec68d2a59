"""Certificates, keys and authorities, made by the `openssl` command as an operator makes them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = 30


def openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key, in PEM."""

    certificate: Path
    key: Path

    @property
    def pem(self) -> tuple[bytes, bytes]:
        """Key and certificate, in the order in which gRPC takes them."""
        return self.key.read_bytes(), self.certificate.read_bytes()


class Authority:
    """A certificate authority of its own, in `directory`, which is made."""

    def __init__(self, directory: Path, name: str = "Test authority") -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self._made = 0
        self.certificate = directory / "ca.pem"
        self._key = directory / "ca-key.pem"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", _DAYS, "-subj", f"/CN={name}"),
            *("-keyout", self._key, "-out", self.certificate),
        )

    def issue(self, *names: str, common_name: str = "", days: int = _DAYS) -> Pair:
        """A certificate with these subject alternative names, such as "DNS:localhost".

        days: how long it is valid; a negative number: since when it is not.
        """
        self._made += 1
        stem = self._directory / f"{self._made}"
        pair = Pair(stem.with_suffix(".pem"), Path(f"{stem}-key.pem"))
        request = stem.with_suffix(".csr")
        openssl(
            *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-subj", f"/CN={common_name}" if common_name else "/"),
            *(("-addext", f"subjectAltName={','.join(names)}") if names else ()),
            *("-keyout", pair.key, "-out", request),
        )
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-copy_extensions", "copy", "-days", days),
            *("-out", pair.certificate),
        )
        return pair

    def issue_server(self, days: int = _DAYS) -> Pair:
        """For a server on this machine."""
        return self.issue("DNS:localhost", "IP:127.0.0.1", days=days)
