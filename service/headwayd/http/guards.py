"""Who may ask at all: no browser that shows another site's page, and none that was led here under a false name.

A page may send many requests to other sites without being asked (an image, a form, a link), and this port is often
reached without credentials. A browser tells where a request comes from. A page that has its own name resolved to this
machine (DNS rebinding) is of the same site to the browser, but not called by a name that is known here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from headwayd.http.origins import Origins
from headwayd.http.refusing import refusal


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
        self._origins = Origins(origins)
        self._hosts = None if hosts is None else {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._hosts is not None and not self._is_known(headers.get("host", "localhost")):
            answer = refusal(421, "the service is not known by the name in Host: call it by its address, or localhost")
        elif self._origins.is_foreign(headers, scope["scheme"]) and not self._is_page(scope):
            answer = refusal(403, "pages of another site may not call here")
        else:
            await self._app(scope, receive, send)
            return
        await answer(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        assert self._hosts is not None
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        return name.lower().removesuffix(".") in self._hosts or _is_address(name)

    def _is_page(self, scope: Scope) -> bool:
        return any(page.matches(scope)[0] is Match.FULL for page in self._pages)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
