"""Who may ask at all: no browser that shows another site's page, and none that was led here under a false name.

A page may send many requests to other sites without being asked (an image, a form, a link), and this port is often
reached without credentials. A browser tells where a request comes from (`Sec-Fetch-Site`, `Origin`) and pages cannot
change that: https://www.w3.org/TR/fetch-metadata/. A page that has its own name resolved to this machine (DNS
rebinding) is of the same site to the browser, but not called by a name that is known here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headwayd.http.refusing import refusal

_OWN_SITE = ("same-origin", "none")  # none: somebody has typed it, or a bookmark
_OF_HOSTS = {"http": 80, "https": 443}


class Page(Route):
    """A route that shows something to people and changes nothing: pages of other sites may lead to it and load it."""


class Guards:
    """The application behind it is asked by those who may. `hosts`: the names by which it may be called beside
    addresses and localhost; None: any."""

    def __init__(
        self, app: ASGIApp, *, routes: Sequence[BaseRoute], origins: Sequence[str], hosts: Sequence[str] | None
    ) -> None:
        self._app = app
        self._pages = [route for route in routes if isinstance(route, Page)]
        self._origins = {origin.lower() for origin in origins}
        self._hosts = None if hosts is None else {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._hosts is not None and not self._is_known(headers.get("host", "localhost")):
            answer = refusal(421, "the service is not known by the name in Host: call it by its address, or localhost")
        elif self._is_foreign(headers, scope["scheme"]) and not self._is_page(scope):
            answer = refusal(403, "pages of another site may not call here")
        else:
            await self._app(scope, receive, send)
            return
        await answer(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        assert self._hosts is not None
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        return name.lower().removesuffix(".") in self._hosts or _is_address(name)

    def _is_foreign(self, headers: Headers, scheme: str) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and ("*" in self._origins or origin.lower() in self._origins):
            return False
        if site is not None:
            return site not in _OWN_SITE
        return origin is not None and not _is_own(origin, headers.get("host", ""), scheme)

    def _is_page(self, scope: Scope) -> bool:
        return any(page.matches(scope)[0] is Match.FULL for page in self._pages)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str, scheme: str) -> bool:
    """Whether it is where the request went. What ends TLS before this service makes https of its http."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _OF_HOSTS[parts.scheme]
        called = urlsplit(f"{parts.scheme}://{host}")
        return (
            (scheme == "http" or parts.scheme == "https")
            and parts.hostname == called.hostname
            and port == (called.port or _OF_HOSTS[parts.scheme])
        )
    except (ValueError, KeyError):
        return False
