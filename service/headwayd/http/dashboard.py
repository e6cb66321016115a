"""The dashboard: pages that show queues as they are, and the one stream that brings a page what it shows.

    GET /                    to the page
    GET /dashboard/          the page and what belongs to it, from this package
    GET /dashboard/events    all queues (?prefix=…&after=…), one queue (?queue=…) or one message (?queue=…&message=…) as
                             server-sent events, until the page is closed

Each page shows what the caller's `Authorization` header may see, and refuses as the calls do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headwayd.domain.calls import CallFailed, certificate_shown
from headwayd.http.answers import status_of
from headwayd.http.connecting import Calls
from headwayd.http.gathering import hung_up, until_gone
from headwayd.http.guards import Page
from headwayd.http.overview import FIRST_PARTS, Overview, View
from headwayd.http.pages import TYPES, file_route
from headwayd.http.shows import Show, Shows

_PAGE = "index.html"
_STREAM_HEADERS = {
    "cache-control": "no-store",
    "content-type": "text/event-stream",
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}
_PACE_S = 0.25  # a page is told more at most so often
_KEEP_ALIVE_S = 15.0
_FIRST_S = 10.0


def dashboard_routes(calls: Calls, shows: Shows, *, is_guarded: bool, may_act: bool) -> list[Route]:
    """Pages look at `shows`. `may_act`: who is not asked who they are may do what operators do; where callers are
    known, their roles say."""

    async def to_page(_request: Request) -> Response:
        return RedirectResponse("/dashboard/", headers={"cache-control": "no-cache"})

    events = _Events(calls, shows, {"guarded": is_guarded, "actions": is_guarded or may_act})
    return [
        Page("/", to_page, methods=["GET"]),
        Page("/dashboard", to_page, methods=["GET"]),
        Route("/dashboard/events", events, methods=["GET"]),
        *_files(),
    ]


def _files() -> list[Page]:
    """Just those of the package: there is no path to any other."""
    folder = files("headwayd.http") / "static" / "dashboard"
    names = [file.name for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES]
    return [file_route("/dashboard/" + ("" if name == _PAGE else name), f"dashboard/{name}") for name in names]


class _Events:
    """The stream of a page: an ASGI application, so that it knows at once when the page is closed."""

    def __init__(self, calls: Calls, shows: Shows, about: dict[str, bool]) -> None:
        self._calls = calls
        self._about = b"event: about\ndata: %s\n\n" % json.dumps(about).encode()
        self._shows = shows

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_gone(self._answer(Request(scope), scope, receive, send), hung_up(receive))

    async def _answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        asked = request.query_params
        view = View(**{name: asked.get(name, "") for name in ("prefix", "after", "queue", "message")})
        authorization = request.headers.get("authorization", "")
        overview = Overview(self._calls, view, authorization)
        try:
            # A show is fed in the name of whoever opened it: only those who are the same to the guard share it.
            async with self._shows.join((authorization, certificate_shown(), view), overview.run) as show:
                await _first_of(show)
                await send({"type": "http.response.start", "status": 200, "headers": _raw(_STREAM_HEADERS)})
                async for chunk in self._chunks(show):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except CallFailed as error:
            await _refusal(error)(scope, receive, send)

    async def _chunks(self, show: Show) -> AsyncGenerator[bytes, None]:
        yield self._about
        seen = 0
        while show.end is None:
            try:
                async with asyncio.timeout(_KEEP_ALIVE_S):
                    seen, chunk = await show.newer_than(seen)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if chunk:
                yield chunk
            await asyncio.sleep(_PACE_S)


async def _first_of(show: Show) -> None:
    """Waits for something to show. Raises CallFailed if there will be nothing."""
    seen = 0
    try:
        async with asyncio.timeout(_FIRST_S):
            while show.end is None and not any(map(show.has, FIRST_PARTS)):
                seen, _ = await show.newer_than(seen)
    except TimeoutError:
        return  # the page waits for it
    if show.end is not None:
        raise show.end


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _refusal(error: CallFailed) -> Response:
    status = status_of(error)
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"code": error.code, "text": error.text}, status_code=status, headers=headers)
