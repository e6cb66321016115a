"""The certificate by which this service shows who it is, and the authority of its callers' certificates, from files.

The gRPC port takes them as they are (`rpc/secure.py`), a port of Python's own takes `context`. Both follow the files:
connections that begin after a change get the new certificate, and show one of the new authority; those that stand keep
the old ones.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headwayd.access.watched import WatchedFiles


@dataclass(frozen=True, slots=True)
class Pems:
    """What the files hold. `client_ca` None: callers need no certificate."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


@dataclass(frozen=True, slots=True)
class _Sound:
    """Files that belong together, and what begins connections with them: whatever is to be made of them has been."""

    pems: Pems
    context: ssl.SSLContext


class TlsFiles:
    """Raises AccessFailed unless the files are there, belong together, and need no password."""

    def __init__(self, *, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._cert, self._key = cert, key
        paths = (cert, key) if client_ca is None else (cert, key, client_ca)
        self._files = WatchedFiles(paths, self._checked)

    @property
    def pems(self) -> Pems:
        """As last read and found sound."""
        return self._files.value.pems

    @property
    def name(self) -> str:
        """One that the certificate is for."""
        from cryptography import x509  # noqa: PLC0415 - takes long to load, and few starts need it

        from headwayd.access.subjects import subjects_of  # noqa: PLC0415 - likewise

        return next(iter(subjects_of(x509.load_pem_x509_certificate(self.pems.cert))), "")

    def refresh(self) -> None:
        """Reads the files again if they have changed."""
        self._files.refresh()

    def context(self) -> ssl.SSLContext:
        """For a server of asyncio's: TLS 1.2 or newer, follows the files as long as `refresh` is called."""
        return _Followed(lambda: self._files.value.context)

    def _checked(self, contents: Sequence[bytes]) -> _Sound:
        pems = Pems(contents[0], contents[1], contents[2] if len(contents) > 2 else None)
        try:
            return _Sound(pems, self._context(pems))
        except ssl.SSLError as error:
            raise ValueError(f"no certificates and key that belong together: {error.reason or error}") from error

    def _context(self, pems: Pems) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if pems.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            # Python takes ASCII only; comments may have more.
            context.load_verify_locations(cadata=pems.client_ca.decode("ascii", "ignore"))
        # Python reads these from files only. Should they have changed since, the next look finds it.
        context.load_cert_chain(self._cert, self._key, password=_no_password)
        return context


class _Followed(ssl.SSLContext):
    """Each connection begins with the newest context. One that is filled anew would keep the authorities that it had,
    and let sessions of theirs go on: neither can be taken out of it."""

    def __new__(cls, *_: Any) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, newest: Callable[[], ssl.SSLContext]) -> None:
        self._newest = newest

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """What asyncio begins a connection with."""
        return self._newest().wrap_bio(*args, **options)


def _no_password() -> str:
    raise ValueError("the key needs a password, which nobody can give")
