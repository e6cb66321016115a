"""Hands the certificate that a client has shown on a connection to the calls that come over it.

A browser shows its certificate whoever made the page that asks, so what a page of somebody else's asks comes without.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headwayd.domain.calls import over_connection_of

# Where a connection keeps it, in PEM; see `protocol`.
CERTIFICATE = "certificate"
_OF_NOBODY_ELSE = ("none", "same-origin")


class Certified:
    """Around the whole application. Pages of `origins` may ask as the port's own may."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        certificate = scope.get("state", {}).get(CERTIFICATE, b"")
        if certificate and self._is_of_another_page(Headers(scope=scope), scope["scheme"]):
            certificate = b""
        with over_connection_of(certificate):
            await self._app(scope, receive, send)

    def _is_of_another_page(self, headers: Headers, scheme: str) -> bool:
        """By what browsers say, and pages cannot: https://www.w3.org/TR/fetch-metadata/. Others say nothing."""
        if (origin := headers.get("origin")) is not None:
            return origin not in self._origins and origin != f"{scheme}://{headers.get('host', '')}"
        return headers.get("sec-fetch-site", "none") not in _OF_NOBODY_ELSE
