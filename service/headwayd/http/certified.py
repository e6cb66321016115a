"""Hands the certificate that a client has shown on a connection to the calls that come over it.

A browser shows its certificate whoever made the page that asks, so what a page of somebody else's asks comes without.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headwayd.domain.calls import over_connection_of
from headwayd.http.origins import ANY, Origins

# Where a connection keeps it, in PEM; see `protocol`.
CERTIFICATE = "certificate"


class Certified:
    """Around the whole application. Pages of `origins` may ask as the port's own may, but for ANY: where
    all pages may call, none does so by a certificate."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = Origins(origin for origin in origins if origin != ANY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        certificate = scope.get("state", {}).get(CERTIFICATE, b"")
        if certificate and self._origins.is_foreign(Headers(scope=scope), scope["scheme"]):
            certificate = b""
        with over_connection_of(certificate):
            await self._app(scope, receive, send)
