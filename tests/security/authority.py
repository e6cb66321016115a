"""Certificates, and the files that services and clients have of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import trustme


class Authority:
    """Issues certificates. What it writes replaces what was there."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        return self._ca.cert_pem.bytes()

    def write_server(self, folder: Path, *, key: bool = True) -> dict[str, str]:
        """A certificate for this machine; the settings that name it. Without `key` the key's file stays as it was."""
        issued = self._ca.issue_cert("localhost", "127.0.0.1")
        parts = {"cert": issued.cert_chain_pems[0].bytes()} | ({"key": issued.private_key_pem.bytes()} if key else {})
        for name, pem in parts.items():
            _replace(folder / f"{name}.pem", pem)
        return {"HEADWAY_TLS_CERT": str(folder / "cert.pem"), "HEADWAY_TLS_KEY": str(folder / "key.pem")}

    def write(self, folder: Path, *, comment: bytes = b"") -> str:
        """Its own certificate, behind a comment; the file."""
        _replace(folder / "ca.pem", comment + self.pem)
        return str(folder / "ca.pem")

    def client(
        self, *names: str, common_name: str | None = None, lives: timedelta = timedelta(days=1)
    ) -> trustme.LeafCert:
        """A client's certificate."""
        return self._ca.issue_cert(*names, common_name=common_name, not_after=datetime.now(UTC) + lives)


def trusting(authority: Authority, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    """For a client that trusts this authority, and shows this certificate."""
    if client is None:
        return grpc.ssl_channel_credentials(authority.pem)
    return grpc.ssl_channel_credentials(
        authority.pem, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
    )


def _replace(path: Path, pem: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(pem)
    new.replace(path)
