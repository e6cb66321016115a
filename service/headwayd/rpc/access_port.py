"""What the gRPC edge needs to know of callers. `access/access.py` is what fulfils it."""

from __future__ import annotations

from typing import Protocol

from headwayd.domain.access import Identity, Quotas


class Access(Protocol):
    """Both ways to identify raise Unauthenticated. `version` changes whenever the same credentials may have come to
    mean something else."""

    @property
    def version(self) -> int: ...

    @property
    def takes_certificates(self) -> bool: ...

    def quotas(self, namespace: str) -> Quotas: ...

    async def identify_token(self, token: str) -> Identity: ...

    def identify_certificate(self, pem: bytes) -> Identity: ...
