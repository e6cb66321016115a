"""Finds out who calls, from a bearer token or a client's certificate, as the operator's files and settings say."""

from __future__ import annotations

import hashlib
import hmac
import time
from pathlib import Path

from cryptography import x509

from headwayd.access import auth_file
from headwayd.access.auth_file import AuthFile
from headwayd.access.signed import SignedTokens
from headwayd.access.subjects import subjects_of
from headwayd.access.watched import WatchedFiles
from headwayd.domain.access import NO_QUOTAS, Identity, Quotas
from headwayd.domain.errors import Unauthenticated


class Access:
    """Raises AccessFailed if the file cannot be used. `version` changes whenever the same credentials may have come to
    mean something else."""

    def __init__(self, *, file: Path | None, signed: SignedTokens | None) -> None:
        self._file = WatchedFiles((file,), auth_file.read) if file else None
        self._signed = signed

    @property
    def version(self) -> int:
        """Grows with every change of the file, and of the keys of signed tokens."""
        return (self._file.version if self._file else 0) + (self._signed.version if self._signed else 0)

    def refresh(self) -> None:
        """Reads the file again if it has changed. To be called every few seconds."""
        if self._file is not None:
            self._file.refresh()

    async def refresh_keys(self) -> None:
        """The same with the keys of signed tokens, which may take as long as they take to be fetched."""
        if self._signed is not None:
            await self._signed.refresh()

    @property
    def takes_certificates(self) -> bool:
        """Whether a certificate may say who calls."""
        return bool(self._said.certificates)

    def quotas(self, namespace: str) -> Quotas:
        """Those of one namespace."""
        return self._said.quotas.get(namespace, NO_QUOTAS)

    async def identify_token(self, token: str) -> Identity:
        """Whose token it is. Raises Unauthenticated."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Identity | None = None
        # All of them, each in constant time: how long it takes tells nothing of any.
        for known, identity in self._said.tokens.items():
            if hmac.compare_digest(known, digest):
                found = identity
        if found is None:
            if self._signed is None:
                raise Unauthenticated("the token is not known")
            return await self._signed.identify(token)
        if found.expires_at is not None and found.expires_at <= time.time():
            raise Unauthenticated("the token has expired")
        return found

    def identify_certificate(self, pem: bytes) -> Identity:
        """Whose certificate it is; gRPC has verified it. Raises Unauthenticated."""
        certificate = x509.load_pem_x509_certificate(pem)
        ends_at = certificate.not_valid_after_utc.timestamp()
        for subject in subjects_of(certificate):
            identity = self._said.certificates.get(subject)
            if identity is not None:
                known_until = ends_at if identity.expires_at is None else min(ends_at, identity.expires_at)
                if known_until <= time.time():
                    raise Unauthenticated("the certificate has expired")
                return Identity(
                    name=identity.name, namespace=identity.namespace, grants=identity.grants, expires_at=known_until
                )
        raise Unauthenticated("the certificate is not known")

    @property
    def _said(self) -> AuthFile:
        return self._file.value if self._file is not None else _NOTHING_SAID


_NOTHING_SAID = AuthFile()
